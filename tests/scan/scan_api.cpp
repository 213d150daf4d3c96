// The scans of the C++ API as torch operators of their own, so that Python can call them: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::Discretization;
using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

// ---- selective_scan

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

// ---- RG-LRU and S7

std::tuple<Tensor, Tensor> rglru_scan(const Tensor& u, const Tensor& delta, const Tensor& A,
                                      const OptionalTensor& initial_state, const OptionalTensor& reset, bool first_multiplier) {
    return gdn_cuda::rglru_scan(
        {.u = u, .delta = delta, .A = A, .initial_state = initial_state, .reset = reset, .first_multiplier = first_multiplier});
}
std::tuple<Tensor, Tensor> s7_scan(const Tensor& u, const Tensor& A, const Tensor& B, const Tensor& C,
                                   const OptionalTensor& bias) {
    return gdn_cuda::s7_scan({.u = u, .A = A, .B = B, .C = C, .bias = bias});
}

// ---- simplified_scan

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

// ---- Steps

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

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "scan_of_mamba(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? z=None, Tensor? cu_seqlens=None) -> "
        "(Tensor, Tensor)");
    m.def("scan_by_zoh(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? initial_state=None) -> (Tensor, Tensor)");
    m.def(
        "rglru_scan(Tensor u, Tensor delta, Tensor A, Tensor? initial_state, Tensor? reset, bool first_multiplier)"
        " -> (Tensor, Tensor)");
    m.def("s7_scan(Tensor u, Tensor A, Tensor B, Tensor C, Tensor? bias) -> (Tensor, Tensor)");
    m.def(
        "simplified_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? delta_a, Tensor? initial_state) -> "
        "(Tensor, Tensor)");
    m.def("s5_inner(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? delta_a, Tensor D, bool conj_sym) -> Tensor");
    m.def(
        "selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? slots, "
        "Tensor(b!)? out) -> Tensor");
    m.def("simplified_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D) -> Tensor");
    m.def("step_without_state(Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("scan_of_mamba", TORCH_BOX(&scan_of_mamba));
    m.impl("scan_by_zoh", TORCH_BOX(&scan_by_zoh));
    m.impl("rglru_scan", TORCH_BOX(&rglru_scan));
    m.impl("s7_scan", TORCH_BOX(&s7_scan));
    m.impl("simplified_scan", TORCH_BOX(&simplified_scan));
    m.impl("s5_inner", TORCH_BOX(&s5_inner));
    m.impl("selective_state_update", TORCH_BOX(&selective_state_update));
    m.impl("simplified_state_update", TORCH_BOX(&simplified_state_update));
    m.impl("step_without_state", TORCH_BOX(&step_without_state));
}
