// fold_states: states through the summaries of consecutive parts, by gdn/fold_states.
#include "fold_states.hpp"

#include <gdn_cuda/gdn.hpp>

#include "../../operators/operator.hpp"
#include "checks.hpp"

namespace gdn_cuda::gdn {
namespace {

FoldStatesArgs prepare_fold(const FoldStates& x) {
    const Checks check{x.name};
    const View state(x.state), additions(x.additions), transitions(x.transitions), out(x.out);
    check.rank("state", state, 4, "(sequences, Hv, dv, dk)");
    const int64_t sequences = state.size(0), heads = state.size(1), dv = state.size(2), dk = state.size(3);
    check_head_dim(check, "state", dk);
    check.rank("additions", additions, 5, "(parts, sequences, Hv, dv, dk)");
    const int64_t parts = additions.size(0);
    check.shape("additions", additions, {parts, sequences, heads, dv, dk}, "(parts, sequences, Hv, dv, dk)");
    check.shape("transitions", transitions, {parts, sequences, heads, dk, dk}, "(parts, sequences, Hv, dk, dk)");
    check.shape("out", out, {sequences, heads, dv, dk}, "(sequences, Hv, dv, dk), the shape of state");
    const DType type = dtype_or_f64(check, "state", state, {DType::f32});
    for (const auto& [name, view] : {std::pair{"additions", additions}, {"transitions", transitions}, {"out", out}}) {
        check.dtype(name, view, {type});
        check.device(name, view, state, "state");
        GDN_REQUIRE(check, view.contiguous_tail(name == std::string_view("out") ? 4 : 2), name,
                    name == std::string_view("out") ? "a contiguous tensor" : "contiguous matrices", "strides that are not");
    }
    GDN_REQUIRE(check, state.contiguous_tail(4), "state", "a contiguous tensor", "strides that are not");
    check.apart({{"out", out}}, {{"state", state}, {"additions", additions}, {"transitions", transitions}});
    const auto matrices = [](const View& view) {
        return FoldedMatrices{static_cast<const float*>(view.data), view.stride(0), view.stride(1), view.stride(2)};
    };
    return {.state = {static_cast<const float*>(state.data), 0, heads * dv * dk, dv * dk},
            .out = static_cast<float*>(out.data),
            .additions = matrices(additions),
            .transitions = matrices(transitions),
            .every = nullptr,
            .parts = static_cast<int>(parts),
            .heads = static_cast<int>(heads),
            .dv = static_cast<int>(dv),
            .dk = static_cast<int>(dk),
            .reverse = x.reverse};
}

void run_fold(const FoldStates& x) {
    const FoldStatesArgs args = prepare_fold(x);
    const View state(x.state);
    const DeviceScope scope(state.device_index);
    const Target target = target_of(x.name, state);
    StatesFold::run(args, state.size(0), target);
}

GDN_REGISTER(FoldStates, prepare_fold, run_fold)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

Tensor fold_states(const FoldStates& given) {
    return into_out<FoldStates, gdn::run_fold>(given, [](FoldStates x) { return with_output_like(x.state, x); });
}

}  // namespace gdn_cuda
