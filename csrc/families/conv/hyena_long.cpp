// hyena_long: y = x2 * (h * u + D u) with u = x1 * v, and h a sum of up to 64 exponentials.
#include "hyena_long.hpp"

#include <gdn_cuda/conv.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "hyena_checks.hpp"

namespace gdn_cuda::conv {
namespace {

using HyenaLongCall = gdn_cuda::HyenaLong;

struct PreparedHyenaLong {
    HyenaGiven given;
    HyenaLongProblem problem{};
    HyenaLongArgs args{};

    std::vector<int64_t> of_state() const { return {given.x1.size(0), given.x1.size(1), problem.states}; }
};

PreparedHyenaLong prepare_hyena_long(const HyenaLongCall& x) {
    const Checks check{x.name};
    PreparedHyenaLong prepared{.given = check_hyena(check, x.x1, x.x2, x.v)};
    const HyenaGiven& given = prepared.given;
    const View residues(x.residues), log_poles(x.log_poles), bias(x.bias);
    HyenaLongArgs& args = prepared.args;
    check.rank("residues", residues, 2, "(groups, S)");
    check.dtype("residues", residues, {given.io, given.wide});
    check.device("residues", residues, given.x1, "x1");
    const int64_t channels = given.x1.size(1), rows = residues.size(0), states = residues.size(1);
    args.channels_a_row = check_groups(check, "residues", residues, channels);
    GDN_REQUIRE(check, states >= 1 && states <= kHyenaMostStates, "residues", fmt::format("1 to {} states", kHyenaMostStates),
                shape_text(residues));
    if (log_poles.rank == 3)
        check.shape("log_poles", log_poles, {rows, states, 1}, "(groups, S, 1)");
    else
        check.shape("log_poles", log_poles, {rows, states}, "(groups, S)");
    check.dtype("log_poles", log_poles, {given.io, given.wide});
    check.device("log_poles", log_poles, given.x1, "x1");
    check.shape("bias", bias, {channels}, "(D,)");
    check.dtype("bias", bias, {given.io, given.wide});
    check.device("bias", bias, given.x1, "x1");
    args.initial = check_initial(check, given, view_of(x.initial_state), states, "(B, D, S)");
    args.residues = tagged(residues);
    args.log_poles = tagged(log_poles);
    args.bias = tagged(bias);
    args.residue_row = residues.stride(0);
    args.residue_state = residues.stride(1);
    args.pole_row = log_poles.stride(0);
    args.pole_state = log_poles.stride(1);
    args.bias_channel = bias.stride(0);
    args.states = static_cast<int>(states);
    given.fill(args);
    prepared.problem = {.io = given.io, .states = states};
    check.grid("x1", hyena_blocks(given.x1.size(0) * channels, 1, 1));
    return prepared;
}

// y in the layout of x1, and the state behind the last token.
std::tuple<Tensor, Tensor> run_hyena_long(const HyenaLongCall& x) {
    PreparedHyenaLong prepared = prepare_hyena_long(x);
    const HyenaGiven& given = prepared.given;
    HyenaLongArgs& args = prepared.args;
    const Target target = target_of(x.name, given.x1);
    const i64 rows = i64{args.batches} * args.channels;
    const HyenaCut cut = hyena_long_cut(rows, args.tokens, jit::device_traits(target.ordinal));
    args.segments = cut.segments;
    args.segment_tokens = cut.segment_tokens;
    const Tensor y = empty_rows(x.x1, given.layout);
    const Tensor last = torch::stable::new_empty(x.x1, prepared.of_state(), ScalarType::Float);
    const std::vector<int64_t> of_shares = {rows, cut.segments - 1, args.states};
    const Tensor added = torch::stable::new_empty(x.x1, of_shares, ScalarType::Float);
    given.fill_output(args, y);
    args.vectors &= given.layout == Layout::tokens;
    args.last = static_cast<float*>(memory_of(last));
    args.added = static_cast<float*>(memory_of(added));
    const DeviceScope scope(given.x1.device_index);
    HyenaLong::run(prepared.problem, args, target);
    return {y, last};
}

GDN_REGISTER(HyenaLongCall, prepare_hyena_long, run_hyena_long)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

std::tuple<Tensor, Tensor> hyena_long(const HyenaLong& x) {
    require_given(x.name, x);
    return call<HyenaLong, conv::run_hyena_long>(x);
}

}  // namespace gdn_cuda
