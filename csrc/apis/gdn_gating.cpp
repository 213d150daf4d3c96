// fused_gdn_gating: beta and the gate from the projections.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "../jit_kernels/impls/gdn/gating.hpp"
#include "gdn.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

struct PreparedGating {
    GatingProblem problem;
    GatingArgs args{};
    View a;
};

PreparedGating prepare_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    const Checks check{"fused_gdn_gating"};
    const View rates(A_log), bias(dt_bias), a_view(a), b_view(b);
    GDN_REQUIRE(check, a_view.rank == 2 || a_view.rank == 3, "a", "(B, T, Hv), or packed (N, Hv)", shape_text(a_view));
    GDN_REQUIRE(check, b_view.rank == a_view.rank && std::equal(b_view.sizes, b_view.sizes + b_view.rank, a_view.sizes), "b",
                "the shape of a " + shape_text(a_view), shape_text(b_view));
    const DType io = check.dtype("a", a_view, {DType::bf16, DType::f16, DType::f32});
    check.dtype("b", b_view, {io});
    const int64_t heads = a_view.size(-1);
    for (const auto& [argument, view] : {std::pair{"A_log", &rates}, std::pair{"dt_bias", &bias}}) {
        check.shape(argument, *view, {heads}, "(Hv,)");
        check.dtype(argument, *view, {DType::f32, DType::bf16, DType::f16});
        check.device(argument, *view, a_view, "a");
        check.last_contiguous(argument, *view);
    }
    check.device("b", b_view, a_view, "a");
    check.last_contiguous("a", a_view);
    check.last_contiguous("b", b_view);

    const bool packed = a_view.rank == 2;
    PreparedGating prepared{};
    prepared.a = a_view;
    GatingArgs& args = prepared.args;
    args.A_log = tagged(rates);
    args.dt_bias = tagged(bias);
    args.a = a_view.data;
    args.b = b_view.data;
    args.a_batch = packed ? 0 : a_view.stride(0);
    args.b_batch = packed ? 0 : b_view.stride(0);
    args.a_token = a_view.stride(-2);
    args.b_token = b_view.stride(-2);
    args.rows = check.count("a", "tokens", heads == 0 ? 0 : a_view.numel() / heads);
    args.tokens = check.count("a", "tokens", a_view.size(-2));
    args.heads = check.count("a", "heads", heads);
    args.one_batch =
        args.rows == args.tokens || (args.a_batch == args.tokens * args.a_token && args.b_batch == args.tokens * args.b_token);
    prepared.problem = {.rows = args.rows, .heads = args.heads, .io = io, .aligned = a_view.aligned16() && b_view.aligned16()};
    return prepared;
}

}  // namespace

std::tuple<Tensor, Tensor> fused_gdn_gating(const Tensor& A_log, const Tensor& dt_bias, const Tensor& a, const Tensor& b) {
    PreparedGating prepared = prepare_gating(A_log, dt_bias, a, b);
    const torch::headeronly::IntHeaderOnlyArrayRef sizes(prepared.a.sizes, static_cast<size_t>(prepared.a.rank));
    const Tensor beta = torch::stable::new_empty(b, sizes);
    const Tensor gate = torch::stable::new_empty(a, sizes, torch::headeronly::ScalarType::Float);
    prepared.args.beta = beta.data_ptr();
    prepared.args.gate = static_cast<float*>(gate.data_ptr());
    const DeviceScope scope(prepared.a.device_index);
    Gating::run(prepared.problem, prepared.args, target_of("fused_gdn_gating", prepared.a));
    return {beta, gate};
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "fused_gdn_gating", "Tensor A_log, Tensor dt_bias, Tensor a, Tensor b", "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("fused_gdn_gating", TORCH_BOX(&fused_gdn_gating));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_fused_gdn_gating", TORCH_BOX(&OnlyCheck<prepare_gating>::run));
}

}  // namespace gdn_cuda::gdn
