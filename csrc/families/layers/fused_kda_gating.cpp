// fused_kda_gating: computes the gates of channels from the projection.
#include <gdn_cuda/layers.hpp>

#include "../../operators/operator.hpp"
#include "../gdn/gate_checks.hpp"
#include "gate_inputs.hpp"
#include "gating.hpp"

namespace gdn_cuda::layers {
namespace {

struct PreparedKdaGating {
    GatingProblem problem;
    GatingArgs args{};
    View a;
};

PreparedKdaGating prepare_kda_gating(const FusedKdaGating& x) {
    const Checks check{x.name};
    const View a(x.a), rates = view_of(x.A_log), bias = view_of(x.dt_bias);
    const std::optional<double>& bound = x.bound.lower_bound;
    GDN_REQUIRE(check, a.rank == 3 || a.rank == 4, "a", "(B, T, Hv, dk), or packed (N, Hv, dk)", shape_text(a));
    const DType io = check.number("a", a);
    check.last_contiguous("a", a);
    GDN_REQUIRE(check, rates.defined() || bound, "A_log", "a tensor without lower_bound", "None");
    gdn::check_bound(check, bound);
    const int64_t heads = check.count("a", "heads", a.size(-2)), dk = check.count("a", "channels", a.size(-1));
    if (rates.defined()) check_head_parameter(check, "A_log", rates, heads, io, a);
    const gdn::ChannelBias channel_bias = gdn::check_channel_bias(check, bias, heads, dk, io, a, "a");

    const bool packed = a.rank == 3;
    PreparedKdaGating prepared{};
    prepared.a = a;
    GatingArgs& args = prepared.args;
    args.A_log = tagged(rates);
    args.dt_bias = channel_bias.values;
    args.bias_head = channel_bias.head;
    args.a = a.data;
    args.a_batch = packed ? 0 : a.stride(0);
    args.a_token = a.stride(-3);
    args.a_head = a.stride(-2);
    args.columns = check.count("a", "channels", heads * dk);
    args.rows = check.count("a", "tokens", args.columns == 0 ? 0 : a.numel() / args.columns);
    args.tokens = check.count("a", "tokens", a.size(-3));
    args.channels = static_cast<int>(dk);
    args.one_batch = args.rows == args.tokens || args.a_batch == args.tokens * args.a_token;
    args.lower_bound = static_cast<float>(bound.value_or(0));
    prepared.problem = {.rows = args.rows,
                        .columns = args.columns,
                        .io = io,
                        .aligned = a.aligned16(),
                        .channels = true,
                        .bounded = bound.has_value(),
                        .channels_per_head = args.channels};
    return prepared;
}

Tensor run_kda_gating(const FusedKdaGating& x) {
    PreparedKdaGating prepared = prepare_kda_gating(x);
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(prepared.a.sizes, static_cast<size_t>(prepared.a.rank));
    const Tensor gate = new_tensor(x.a, sizes, ScalarType::Float);
    prepared.args.gate = static_cast<float*>(gate.data_ptr());
    const DeviceScope scope(prepared.a.device_index);
    Gating::run(prepared.problem, prepared.args, target_of(x.name, prepared.a));
    return gate;
}

GDN_REGISTER(FusedKdaGating, prepare_kda_gating, run_kda_gating)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

GDN_FUNCTION(fused_kda_gating, FusedKdaGating, layers::run_kda_gating)

}  // namespace gdn_cuda
