// A torch operator (torch.ops.gdn_cuda_api) that calls the C++ API of mamba2_decode_layer, so that Python can test it.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::Tensor;

Tensor mamba2_decode_layer(const Tensor& xBC, const Tensor& dt, const Tensor& weight, const Tensor& A, Tensor conv_pool,
                           Tensor state_pool, const Tensor& slots) {
    return gdn_cuda::mamba2_decode_layer({.xBC = xBC,
                                          .dt = dt,
                                          .conv_weight = weight,
                                          .A = A,
                                          .conv_pool = conv_pool,
                                          .state_pool = state_pool,
                                          .state_indices = slots,
                                          .groups = 2,
                                          .dt_softplus = true,
                                          .dt_highest = 0.5});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "mamba2_decode_layer(Tensor xBC, Tensor dt, Tensor weight, Tensor A, Tensor(a!) conv_pool, Tensor(b!) state_pool, "
        "Tensor slots) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("mamba2_decode_layer", TORCH_BOX(&mamba2_decode_layer));
}
