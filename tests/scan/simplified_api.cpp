// The C++ API of simplified scans as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> simplified_scan(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                           const Tensor& C, const OptionalTensor& delta_a,
                                           const OptionalTensor& initial_state) {
    return gdn_cuda::simplified_scan(
        {.u = u, .delta = delta, .A = A, .B = B, .C = C, .delta_a = delta_a, .initial_state = initial_state});
}
Tensor s5_inner(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                const OptionalTensor& delta_a, const Tensor& D, bool conj_sym) {
    return gdn_cuda::s5_inner({.u = u,
                               .delta = delta,
                               .A = A,
                               .B = B,
                               .C = C,
                               .D = D,
                               .delta_a = delta_a,
                               .discretization = gdn_cuda::Discretization::zoh,
                               .conj_sym = conj_sym});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "simplified_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? delta_a, Tensor? initial_state) -> "
        "(Tensor, Tensor)");
    m.def("s5_inner(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? delta_a, Tensor D, bool conj_sym) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("simplified_scan", TORCH_BOX(&simplified_scan));
    m.impl("s5_inner", TORCH_BOX(&s5_inner));
}
