// Torch operators (torch.ops.gdn_cuda_api) that call the C++ API of conv_split_l2norm, so that Python can test it.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

using Split = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Split conv_split(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& initial_states,
                 const OptionalTensor& a, const OptionalTensor& b, const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                 int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv) {
    return gdn_cuda::conv_split_l2norm({.x = x,
                                        .weight = weight,
                                        .bias = bias,
                                        .initial_states = initial_states,
                                        .a = a,
                                        .b = b,
                                        .A_log = A_log,
                                        .dt_bias = dt_bias,
                                        .key_heads = key_heads,
                                        .value_heads = value_heads,
                                        .dk = dk,
                                        .dv = dv});
}
Split conv_split_prefill(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Tensor& conv_state,
                         const Tensor& slots, int64_t key_heads, int64_t value_heads, int64_t dk, int64_t dv) {
    return gdn_cuda::conv_split_l2norm_prefill({.x = x,
                                                .weight = weight,
                                                .bias = bias,
                                                .conv_state = conv_state,
                                                .state_indices = slots,
                                                .key_heads = key_heads,
                                                .value_heads = value_heads,
                                                .dk = dk,
                                                .dv = dv});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "conv_split(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, Tensor? a, Tensor? b, Tensor? A_log, "
        "Tensor? dt_bias, int key_heads, int value_heads, int dk, int dv) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
    m.def(
        "conv_split_prefill(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) conv_state, Tensor slots, int key_heads, int "
        "value_heads, int dk, int dv) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("conv_split", TORCH_BOX(&conv_split));
    m.impl("conv_split_prefill", TORCH_BOX(&conv_split_prefill));
}
