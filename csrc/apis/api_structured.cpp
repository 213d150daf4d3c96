// The public C++ API: structured matrices. CUDA tensors straight to the launch, others through torch's dispatcher.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/api.hpp>

#include "dispatch.hpp"
#include "structured.hpp"

namespace gdn_cuda {
namespace {

Tensor cauchy(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj, const OptionalTensor& out) {
    if (v.is_cuda()) {
        if (!out) return structured::cauchy(plain(v), plain(points), plain(poles), conj);
        structured::cauchy_out(plain(v), plain(points), plain(poles), conj, *out);
        return *out;
    }
    if (!out) return tensor_of(dispatch<1>("gdn_cuda::cauchy", v, points, poles, conj)[0]);
    dispatch<0>("gdn_cuda::cauchy_out", v, points, poles, conj, *out);
    return *out;
}

}  // namespace

Tensor cauchy_kernel(const Tensor& v, const Tensor& omega, const Tensor& lambd, const OptionalTensor& out) {
    return cauchy(v, omega, lambd, false, out);
}

Tensor cauchy_conj(const Tensor& v, const Tensor& z, const Tensor& w, const OptionalTensor& out) {
    return cauchy(v, z, w, true, out);
}

Tensor log_vandermonde(const Tensor& v, const Tensor& x, int64_t L, const OptionalTensor& out) {
    if (v.is_cuda()) {
        if (!out) return structured::log_vandermonde(plain(v), plain(x), L);
        structured::log_vandermonde_out(plain(v), plain(x), L, *out);
        return *out;
    }
    if (!out) return tensor_of(dispatch<1>("gdn_cuda::log_vandermonde", v, x, L)[0]);
    dispatch<0>("gdn_cuda::log_vandermonde_out", v, x, L, *out);
    return *out;
}

Tensor log_vandermonde_transpose(const Tensor& u, const Tensor& v, const Tensor& x) {
    const View of_v(v), of_x(x);
    const Checks check{"log_vandermonde_transpose"};
    GDN_REQUIRE(check, of_x.rank >= 1, "x", "rank 1 or more", shape_text(of_x));
    GDN_REQUIRE(check, of_v.rank >= 1 && of_v.size(-1) == of_x.size(-1), "v", fmt::format("(…, {}) as x has", of_x.size(-1)),
                shape_text(of_v));
    check.dtype("v", of_v, {check.dtype("x", of_x, {DType::c64, DType::c128})});
    check.device("v", of_v, of_x, "x");
    const int64_t orders = 1, first = 0;
    const Tensor moments = u.is_cuda() ? structured::log_vandermonde_moments(plain(u), plain(x), orders)
                                       : tensor_of(dispatch<1>("gdn_cuda::log_vandermonde_moments", u, x, orders)[0]);
    return of_torch("aten::mul", "Tensor", v, torch::stable::select(moments, 0, first));
}

}  // namespace gdn_cuda
