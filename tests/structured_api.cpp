// The C++ API of the structured operators as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

Tensor cauchy_kernel(const Tensor& v, const Tensor& omega, const Tensor& lambd, const OptionalTensor& out) {
    return gdn_cuda::cauchy_kernel(v, omega, lambd, out);
}
Tensor cauchy_conj(const Tensor& v, const Tensor& z, const Tensor& w, const OptionalTensor& out) {
    return gdn_cuda::cauchy_conj(v, z, w, out);
}
Tensor log_vandermonde(const Tensor& v, const Tensor& x, int64_t L, const OptionalTensor& out) {
    return gdn_cuda::log_vandermonde(v, x, L, out);
}
Tensor log_vandermonde_transpose(const Tensor& u, const Tensor& v, const Tensor& x) {
    return gdn_cuda::log_vandermonde_transpose(u, v, x);
}

}  // namespace

STABLE_TORCH_LIBRARY(gdn_cuda_api, m) {
    m.def("cauchy_kernel(Tensor v, Tensor omega, Tensor lambd, Tensor? out=None) -> Tensor");
    m.def("cauchy_conj(Tensor v, Tensor z, Tensor w, Tensor? out=None) -> Tensor");
    m.def("log_vandermonde(Tensor v, Tensor x, int L, Tensor? out=None) -> Tensor");
    m.def("log_vandermonde_transpose(Tensor u, Tensor v, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("cauchy_kernel", TORCH_BOX(&cauchy_kernel));
    m.impl("cauchy_conj", TORCH_BOX(&cauchy_conj));
    m.impl("log_vandermonde", TORCH_BOX(&log_vandermonde));
    m.impl("log_vandermonde_transpose", TORCH_BOX(&log_vandermonde_transpose));
}
