// hyena_modal_step: one or several tokens of a filter in modal form, states in slots of a pool.
#include <gdn_cuda/conv.hpp>

#include "../../operators/operator.hpp"
#include "hyena_step.hpp"
#include "hyena_step_checks.hpp"

namespace gdn_cuda::conv {
namespace {

struct PreparedModalStep {
    View x2;
    bool vectors = false;
    HyenaModalStepArgs args{};
};

// Whether rows are whole aligned 16-byte units of fp32.
bool has_units(const View& view) {
    return *dtype_of(view) == DType::f32 && view.size(-1) % 4 == 0 && view.contiguous_tail(1) && view.aligned16();
}

PreparedModalStep prepare_modal_step(const gdn_cuda::HyenaModalStep& x) {
    const Checks check{x.name};
    const View x2(x.x2), x1(x.x1), v(x.v), D(x.D), residues(x.residues), log_poles(x.log_poles), state(x.state),
        slots = view_of(x.state_indices), out(x.out);
    const HyenaStepChecks rows{check, x2, "x2"};
    rows.first();
    PreparedModalStep prepared{.x2 = x2};
    HyenaModalStepArgs& args = prepared.args;
    args.x2 = rows.rows("x2", x2);
    args.x1 = rows.rows("x1", x1);
    args.v = rows.rows("v", v);
    args.D_channel = rows.per_channel("D", D);
    args.D = tagged(D);
    GDN_REQUIRE(check, residues.rank == 2 && residues.size(1) >= 1 && residues.size(1) <= kMostModalStates, "residues",
                fmt::format("(groups, S), S from 1 to {}", kMostModalStates), shape_text(residues));
    rows.number("residues", residues);
    args.group_channels = rows.channels_of_group("residues", residues);
    const int64_t groups = residues.size(0), count = residues.size(1);
    GDN_REQUIRE(check, log_poles.same_shape({groups, count}) || log_poles.same_shape({groups, count, 1}), "log_poles",
                fmt::format("({0}, {1}) or ({0}, {1}, 1), as residues", groups, count), shape_text(log_poles));
    rows.number("log_poles", log_poles);
    GDN_REQUIRE(check, state.rank == 3 && state.size(1) == x2.size(1) && state.size(2) == count, "state",
                fmt::format("(B or slots, D={}, S={})", x2.size(1), count), shape_text(state));
    rows.states(args, "state", state, slots, x.null_slot);
    args.out = rows.output("out", out);
    args.count = static_cast<int>(count);
    args.residues = tagged(residues);
    args.residues_group = residues.stride(0);
    args.residues_state = residues.stride(1);
    args.log_poles = tagged(log_poles);
    args.log_poles_group = log_poles.stride(0);
    args.log_poles_state = log_poles.stride(1);
    prepared.vectors = has_units(state) && has_units(residues) && log_poles.rank == 2 && has_units(log_poles);
    check.grid("x2", {ceil_div(args.channels, HyenaModalStep::kConfigurations.back().rows()) * args.sequences, 1, 1});
    check.apart({{"state", state}, {"out", out}}, {{"x2", x2},
                                                   {"x1", x1},
                                                   {"v", v},
                                                   {"D", D},
                                                   {"residues", residues},
                                                   {"log_poles", log_poles},
                                                   {"state_indices", slots}});
    return prepared;
}

void run_modal_step(const gdn_cuda::HyenaModalStep& x) {
    const PreparedModalStep prepared = prepare_modal_step(x);
    const DeviceScope scope(prepared.x2.device_index);
    HyenaModalStep::run(prepared.args, prepared.vectors, target_of(x.name, prepared.x2));
}

GDN_REGISTER(gdn_cuda::HyenaModalStep, prepare_modal_step, run_modal_step)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

Tensor hyena_modal_step(const HyenaModalStep& given) {
    return into_out<HyenaModalStep, conv::run_modal_step>(given, [](const auto& x) { return with_output_like(x.x2, x); });
}

}  // namespace gdn_cuda
