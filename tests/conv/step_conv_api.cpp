// causal_conv1d_update of the C++ API as a torch operator of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

Tensor conv_step(const Tensor& x, const Tensor& conv_state, const Tensor& weight, const OptionalTensor& slots,
                 const OptionalTensor& accepted, const OptionalTensor& out) {
    gdn_cuda::CausalConv1dUpdate step{.x = x,
                                      .conv_state = conv_state,
                                      .weight = weight,
                                      .conv_state_indices = slots,
                                      .verify = {.num_accepted_tokens = accepted},
                                      .null_slot = 0,
                                      .silu = true};
    if (out) step.out = *out;
    return gdn_cuda::causal_conv1d_update(step);
}

Tensor conv_step_without_state(const Tensor& x) {
    return gdn_cuda::causal_conv1d_update({.x = x, .conv_state = {}, .weight = x});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "conv_step(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? slots, Tensor? accepted, Tensor(b!)? out) -> "
        "Tensor");
    m.def("conv_step_without_state(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("conv_step", TORCH_BOX(&conv_step));
    m.impl("conv_step_without_state", TORCH_BOX(&conv_step_without_state));
}
