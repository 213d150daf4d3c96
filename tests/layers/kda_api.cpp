// A torch operator (torch.ops.gdn_cuda_api) that calls the C++ API of kda_decode_layer, so that Python can test it.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::Tensor;

Tensor kda_decode_layer(const Tensor& qkv, const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& A_log,
                        const Tensor& dt_bias, const Tensor& z, const Tensor& norm_weight, Tensor conv_pool, Tensor state_pool,
                        const Tensor& slots) {
    return gdn_cuda::kda_decode_layer({.qkv = qkv,
                                       .a = a,
                                       .b = b,
                                       .conv_weight = weight,
                                       .gates = {.A_log = A_log, .dt_bias = dt_bias},
                                       .bound = {.lower_bound = -5.0},
                                       .z = z,
                                       .norm_weight = norm_weight,
                                       .conv_pool = conv_pool,
                                       .state_pool = state_pool,
                                       .state_indices = slots});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "kda_decode_layer(Tensor qkv, Tensor a, Tensor b, Tensor weight, Tensor A_log, Tensor dt_bias, Tensor z, Tensor "
        "norm_weight, Tensor(a!) conv_pool, Tensor(b!) state_pool, Tensor slots) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("kda_decode_layer", TORCH_BOX(&kda_decode_layer));
}
