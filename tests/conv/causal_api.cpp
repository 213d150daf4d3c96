// causal_conv1d of the C++ API as torch operators of their own, so that Python can call them: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> convolve(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                    const OptionalTensor& initial_states, const OptionalTensor& cu_seqlens) {
    return gdn_cuda::causal_conv1d({.x = x,
                                    .weight = weight,
                                    .bias = bias,
                                    .initial_states = initial_states,
                                    .cu_seqlens = cu_seqlens,
                                    .silu = true,
                                    .return_final_states = true});
}
Tensor prefill(const Tensor& x, const Tensor& weight, const Tensor& pool, const OptionalTensor& slots,
               const OptionalTensor& has_initial, const OptionalTensor& cu_seqlens) {
    return gdn_cuda::causal_conv1d_prefill({.x = x,
                                            .weight = weight,
                                            .conv_state = pool,
                                            .state_indices = slots,
                                            .has_initial_state = has_initial,
                                            .cu_seqlens = cu_seqlens});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("causal_conv1d(Tensor x, Tensor weight, Tensor? bias, Tensor? states, Tensor? cu_seqlens) -> (Tensor, Tensor)");
    m.def(
        "causal_conv1d_prefill(Tensor x, Tensor weight, Tensor(a!) pool, Tensor? slots, Tensor? has_initial, Tensor? "
        "cu_seqlens)"
        " -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("causal_conv1d", TORCH_BOX(&convolve));
    m.impl("causal_conv1d_prefill", TORCH_BOX(&prefill));
}
