// The C++ API of RG-LRU's and S7's scans as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> rglru_scan(const Tensor& u, const Tensor& delta, const Tensor& A,
                                      const OptionalTensor& initial_state, const OptionalTensor& reset, bool first_multiplier) {
    return gdn_cuda::rglru_scan(
        {.u = u, .delta = delta, .A = A, .initial_state = initial_state, .reset = reset, .first_multiplier = first_multiplier});
}
std::tuple<Tensor, Tensor> s7_scan(const Tensor& u, const Tensor& A, const Tensor& B, const Tensor& C,
                                   const OptionalTensor& bias) {
    return gdn_cuda::s7_scan({.u = u, .A = A, .B = B, .C = C, .bias = bias});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "rglru_scan(Tensor u, Tensor delta, Tensor A, Tensor? initial_state, Tensor? reset, bool first_multiplier)"
        " -> (Tensor, Tensor)");
    m.def("s7_scan(Tensor u, Tensor A, Tensor B, Tensor C, Tensor? bias) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("rglru_scan", TORCH_BOX(&rglru_scan));
    m.impl("s7_scan", TORCH_BOX(&s7_scan));
}
