// selective_scan of the C++ API as a torch operator of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::Discretization;
using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> scan_of_mamba(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                                         const Tensor& C, const OptionalTensor& z, const OptionalTensor& cu_seqlens) {
    return gdn_cuda::selective_scan({.u = u, .delta = delta, .A = A, .B = B, .C = C, .z = z, .cu_seqlens = cu_seqlens});
}
std::tuple<Tensor, Tensor> scan_by_zoh(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B, const Tensor& C,
                                       const OptionalTensor& initial_state) {
    return gdn_cuda::selective_scan({.u = u,
                                     .delta = delta,
                                     .A = A,
                                     .B = B,
                                     .C = C,
                                     .initial_state = initial_state,
                                     .delta_softplus = true,
                                     .discretization = Discretization::zoh});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "scan_of_mamba(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? z=None, Tensor? cu_seqlens=None) -> "
        "(Tensor, Tensor)");
    m.def("scan_by_zoh(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? initial_state=None) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("scan_of_mamba", TORCH_BOX(&scan_of_mamba));
    m.impl("scan_by_zoh", TORCH_BOX(&scan_by_zoh));
}
