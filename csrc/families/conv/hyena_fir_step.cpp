// hyena_fir_step: one or several tokens of a causal FIR filter, states in slots of a pool.
#include <gdn_cuda/conv.hpp>

#include "../../operators/operator.hpp"
#include "hyena_step.hpp"
#include "hyena_step_checks.hpp"

namespace gdn_cuda::conv {
namespace {

struct PreparedFirStep {
    View u;
    HyenaFirStepArgs args{};
};

PreparedFirStep prepare_fir_step(const gdn_cuda::HyenaFirStep& x) {
    const Checks check{x.name};
    const View u(x.u), state(x.fir_state), weight(x.weight), bias = view_of(x.bias), slots = view_of(x.state_indices),
                                                             out(x.out);
    const HyenaStepChecks rows{check, u, "u"};
    rows.first();
    PreparedFirStep prepared{.u = u};
    HyenaFirStepArgs& args = prepared.args;
    args.u = rows.rows("u", u);
    GDN_REQUIRE(check, weight.rank == 3 && weight.size(1) == 1 && weight.size(2) >= 1 && weight.size(2) <= kMostFirTaps,
                "weight", fmt::format("(groups, 1, K), K from 1 to {}", kMostFirTaps), shape_text(weight));
    rows.number("weight", weight);
    args.group_channels = rows.channels_of_group("weight", weight);
    args.width = static_cast<int>(weight.size(2)) - 1;
    GDN_REQUIRE(check, state.rank == 3 && state.size(1) == u.size(1) && state.size(2) == args.width, "fir_state",
                fmt::format("(B or slots, D={}, K-1={})", u.size(1), args.width), shape_text(state));
    rows.states(args, "fir_state", state, slots, x.null_slot);
    if (bias.defined()) args.bias_channel = rows.per_channel("bias", bias);
    args.out = rows.output("out", out);
    args.weight = tagged(weight);
    args.weight_group = weight.stride(0);
    args.weight_tap = weight.stride(2);
    args.bias = tagged(bias);
    args.flipped = x.flip_filter;
    args.gated_bias = x.gated_bias;
    check.grid("u", {ceil_div(args.channels, HyenaFirStep::config_for(args.width + 1).rows()) * args.sequences, 1, 1});
    check.apart({{"fir_state", state}, {"out", out}}, {{"u", u}, {"weight", weight}, {"bias", bias}, {"state_indices", slots}});
    return prepared;
}

void run_fir_step(const gdn_cuda::HyenaFirStep& x) {
    const PreparedFirStep prepared = prepare_fir_step(x);
    const DeviceScope scope(prepared.u.device_index);
    HyenaFirStep::run(prepared.args, target_of(x.name, prepared.u));
}

GDN_REGISTER(gdn_cuda::HyenaFirStep, prepare_fir_step, run_fir_step)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

Tensor hyena_fir_step(const gdn_cuda::HyenaFirStep& given) {
    return into_out<gdn_cuda::HyenaFirStep, conv::run_fir_step>(given, [](const auto& x) { return with_output_like(x.u, x); });
}

}  // namespace gdn_cuda
