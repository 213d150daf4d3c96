// Mamba-2's scan of the C++ API as torch operators of its own, so that Python can call it: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::SsdScan;
using gdn_cuda::Tensor;

SsdScan call_of(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
    return {.x = x,
            .dt = dt,
            .A = A,
            .B = B,
            .C = C,
            .initial_state = initial_state,
            .cu_seqlens = cu_seqlens,
            .dt_softplus = true,
            .dt_highest = 0.5};
}

std::tuple<Tensor, Tensor> ssd_scan(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens) {
    return gdn_cuda::ssd_scan(call_of(x, dt, A, B, C, initial_state, cu_seqlens));
}
std::tuple<Tensor, Tensor> ssd_scan_into(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                         const Tensor& last_state) {
    SsdScan call = call_of(x, dt, A, B, C, {}, {});
    call.last_state = last_state;
    return gdn_cuda::ssd_scan(call);
}
std::tuple<Tensor, Tensor> ssd_scan_pool(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                                         const OptionalTensor& pool, const Tensor& state_indices, const Tensor& out) {
    SsdScan call = call_of(x, dt, A, B, C, pool, {});
    call.state_indices = state_indices;
    call.out = out;
    return gdn_cuda::ssd_scan(call);
}
Tensor ssd_scan_boundaries(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                           const OptionalTensor& cu_seqlens, const Tensor& boundaries, const Tensor& checkpoints) {
    SsdScan call = call_of(x, dt, A, B, C, {}, cu_seqlens);
    call.reported = {.boundaries = boundaries, .checkpoints = checkpoints};
    return std::get<0>(gdn_cuda::ssd_scan(call));
}
std::tuple<Tensor, Tensor> ssd_summary(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B) {
    return gdn_cuda::ssd_summary({.x = x, .dt = dt, .A = A, .B = B, .dt_softplus = true});
}

Tensor ssd_replay_decode(const Tensor& x, const Tensor& dt, const Tensor& A, const Tensor& B, const Tensor& C,
                         const Tensor& pool, const Tensor& x_ring, const Tensor& B_ring, const Tensor& delta_ring,
                         const Tensor& pending, const OptionalTensor& accepted) {
    return gdn_cuda::ssd_replay_decode({.x = x,
                                        .dt = dt,
                                        .A = A,
                                        .B = B,
                                        .C = C,
                                        .state_pool = pool,
                                        .x_ring = x_ring,
                                        .B_ring = B_ring,
                                        .delta_ring = delta_ring,
                                        .pending = pending,
                                        .verify = {.num_accepted_tokens = accepted},
                                        .dt_softplus = true,
                                        .dt_highest = 0.5});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def(
        "ssd_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? initial_state, Tensor? cu_seqlens) -> "
        "(Tensor, Tensor)");
    m.def("ssd_scan_into(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor(a!) last_state) -> (Tensor, Tensor)");
    m.def(
        "ssd_scan_pool(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor(a!)? pool, Tensor state_indices, "
        "Tensor(b!) out) -> (Tensor, Tensor)");
    m.def(
        "ssd_scan_boundaries(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? cu_seqlens, Tensor boundaries, "
        "Tensor(a!) checkpoints) -> Tensor");
    m.def(
        "ssd_replay_decode(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor(a!) pool, Tensor(b!) x_ring, "
        "Tensor(c!) B_ring, Tensor(d!) delta_ring, Tensor(e!) pending, Tensor? accepted) -> Tensor");
    m.def("ssd_summary(Tensor x, Tensor dt, Tensor A, Tensor B) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("ssd_scan", TORCH_BOX(&ssd_scan));
    m.impl("ssd_scan_into", TORCH_BOX(&ssd_scan_into));
    m.impl("ssd_scan_pool", TORCH_BOX(&ssd_scan_pool));
    m.impl("ssd_scan_boundaries", TORCH_BOX(&ssd_scan_boundaries));
    m.impl("ssd_replay_decode", TORCH_BOX(&ssd_replay_decode));
    m.impl("ssd_summary", TORCH_BOX(&ssd_summary));
}
