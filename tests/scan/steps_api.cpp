// The C++ API of the scans' steps as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/scan.hpp>

namespace {

using gdn_cuda::Discretization;
using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

Tensor selective_state_update(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                              const Tensor& C, const OptionalTensor& D, const OptionalTensor& slots,
                              const OptionalTensor& out) {
    gdn_cuda::SelectiveStateUpdate step{.state = state,
                                        .x = x,
                                        .dt = dt,
                                        .A = A,
                                        .B = B,
                                        .C = C,
                                        .D = D,
                                        .state_batch_indices = slots,
                                        .dt_softplus = true,
                                        .discretization = Discretization::zoh};
    if (out) step.out = *out;
    return gdn_cuda::selective_state_update(step);
}

Tensor simplified_state_update(const Tensor& state, const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B,
                               const Tensor& C, const OptionalTensor& D) {
    return gdn_cuda::simplified_state_update({.state = state,
                                              .x = x,
                                              .dt = dt,
                                              .A = A,
                                              .B = B,
                                              .C = C,
                                              .D = D,
                                              .discretization = Discretization::dirac,
                                              .conj_sym = false});
}

Tensor step_without_state(const Tensor& x) {
    return gdn_cuda::selective_state_update({.state = {}, .x = x, .dt = x, .A = x, .B = x, .C = x});
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? slots, "
        "Tensor(b!)? out) -> Tensor");
    m.def("simplified_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D) -> Tensor");
    m.def("step_without_state(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("selective_state_update", TORCH_BOX(&selective_state_update));
    m.impl("simplified_state_update", TORCH_BOX(&simplified_state_update));
    m.impl("step_without_state", TORCH_BOX(&step_without_state));
}

}  // namespace
