// Torch operators (torch.ops.gdn_cuda_api) that call the C++ API of rms_norm_gated, so that Python can test it.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::Tensor;

Tensor rms_norm_gated(const Tensor& x, const Tensor& gate, const Tensor& weight) {
    return gdn_cuda::rms_norm_gated({.x = x,
                                     .gate = gate,
                                     .weight = weight,
                                     .eps = 1e-6,
                                     .activation = gdn_cuda::layers::GateActivation::sigmoid,
                                     .norm_before_gate = false,
                                     .group_size = 8});
}
Tensor rms_norm(const Tensor& x) {
    return gdn_cuda::rms_norm_gated({.x = x});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("rms_norm_gated(Tensor x, Tensor gate, Tensor weight) -> Tensor");
    m.def("rms_norm(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("rms_norm_gated", TORCH_BOX(&rms_norm_gated));
    m.impl("rms_norm", TORCH_BOX(&rms_norm));
}
