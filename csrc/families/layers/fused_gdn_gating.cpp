// fused_gdn_gating: computes beta and the gate from the projections.
#include <gdn_cuda/layers.hpp>

#include "../../operators/operator.hpp"
#include "gate_inputs.hpp"
#include "gating.hpp"

namespace gdn_cuda::layers {
namespace {

struct PreparedGating {
    GatingProblem problem;
    GatingArgs args{};
    View a;
};

PreparedGating prepare_gating(const FusedGdnGating& x) {
    const Checks check{x.name};
    const View rates(x.A_log), bias(x.dt_bias), a(x.a), b(x.b);
    GDN_REQUIRE(check, a.rank == 2 || a.rank == 3, "a", "(B, T, Hv), or packed (N, Hv)", shape_text(a));
    const DType io = check_gate_inputs(check, {rates, bias, a, b});
    check.last_contiguous("a", a);
    check.last_contiguous("b", b);

    const int64_t heads = a.size(-1);
    const bool packed = a.rank == 2;
    PreparedGating prepared{};
    prepared.a = a;
    GatingArgs& args = prepared.args;
    args.A_log = tagged(rates);
    args.dt_bias = tagged(bias);
    args.a = a.data;
    args.b = b.data;
    args.a_batch = packed ? 0 : a.stride(0);
    args.b_batch = packed ? 0 : b.stride(0);
    args.a_token = a.stride(-2);
    args.b_token = b.stride(-2);
    args.rows = check.count("a", "tokens", heads == 0 ? 0 : a.numel() / heads);
    args.tokens = check.count("a", "tokens", a.size(-2));
    args.columns = check.count("a", "heads", heads);
    args.one_batch =
        args.rows == args.tokens || (args.a_batch == args.tokens * args.a_token && args.b_batch == args.tokens * args.b_token);
    prepared.problem = {.rows = args.rows, .columns = args.columns, .io = io, .aligned = a.aligned16() && b.aligned16()};
    return prepared;
}

std::tuple<Tensor, Tensor> run_gating(const FusedGdnGating& x) {
    PreparedGating prepared = prepare_gating(x);
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(prepared.a.sizes, static_cast<size_t>(prepared.a.rank));
    const Tensor beta = new_tensor(x.b, sizes), gate = new_tensor(x.a, sizes, ScalarType::Float);
    prepared.args.beta = beta.data_ptr();
    prepared.args.gate = static_cast<float*>(gate.data_ptr());
    const DeviceScope scope(prepared.a.device_index);
    Gating::run(prepared.problem, prepared.args, target_of(x.name, prepared.a));
    return {beta, gate};
}

GDN_REGISTER(FusedGdnGating, prepare_gating, run_gating)

}  // namespace
}  // namespace gdn_cuda::layers

namespace gdn_cuda {

GDN_FUNCTION(fused_gdn_gating, FusedGdnGating, layers::run_gating)

}  // namespace gdn_cuda
