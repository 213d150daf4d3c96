// Selective and simplified scans: gdn_cuda/scan has the formulas, docs/scan.md the edge cases. The state is fp32. Gradients
// exist in Python only.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>
#include <gdn_cuda/options.hpp>
#include <span>
#include <tuple>

namespace gdn_cuda {

// What the operators' schemas call the discretizations, in the order of the enumeration.
inline constexpr std::array kDiscretizationNames = {"mamba", "zoh", "bilinear", "dirac", "s7", "rglru"};
constexpr std::span<const char* const> names_of(Discretization) {
    return kDiscretizationNames;
}

}  // namespace gdn_cuda

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

// u, delta, z, delta_a: (B, D, L), float32, bfloat16 or float16, contiguous or the transposed view of (B, L, D). A: (D, N),
// float32 or complex64. B, C, each on its own: (D, N) as A, or (B, N, L) or (B, G, N, L), with a last dimension of 2L (real,
// imaginary) pairs for a complex A. D, delta_bias: (D). initial_state: (B or sequences, D, N) as A.
struct GDN_HOLDS_TENSORS SelectiveScan {
    Given u, delta, A, B, C;
    OptionalTensor D = {}, z = {}, delta_bias = {}, delta_a = {}, initial_state = {}, cu_seqlens = {};
    bool delta_softplus = false;
    Discretization discretization = Discretization::mamba;

    GDN_FIELDS(u, delta, A, B, C, D, z, delta_bias, delta_a, initial_state, cu_seqlens, delta_softplus, discretization)
};
// (out, last state)
std::tuple<Tensor, Tensor> selective_scan(const SelectiveScan& arguments);

// One token or several, packed with cu_seqlens; state, which is updated: (B or slots, [heads,] D, N). write_indices: other
// slots to write.
struct GDN_HOLDS_TENSORS SelectiveStateUpdate {
    static constexpr const char* name = "selective_state_update";
    Written state;
    Given x, dt, A, B, C;
    OptionalTensor D = {}, z = {}, dt_bias = {}, delta_a = {}, state_batch_indices = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    std::optional<int64_t> null_slot = {};
    StepStates steps = {};
    OptionalTensor parents = {}, write_indices = {};
    bool update_state = true;
    bool dt_softplus = false;
    Discretization discretization = Discretization::mamba;
    OptionalWritten state_scales = {};  // for int8 states: (B or slots, heads, D, N / 32) fp32
    Output out = {};

    GDN_FIELDS(state, x, dt, A, B, C, dt_softplus, D, z, dt_bias, delta_a, state_batch_indices, state_scales, cu_seqlens,
               verify, null_slot, steps, parents, write_indices, update_state, discretization, out)
};
// out
Tensor selective_state_update(const SelectiveStateUpdate& arguments);

// u: (B, H, L) complex64; delta, delta_a: (B, P, L) or (P) float32; A: (P) or (P, 1), B: (P, H), C: (H, P), initial_state:
// (B, P), all complex64.
struct GDN_HOLDS_TENSORS SimplifiedScan {
    Given u, delta, A, B, C;
    OptionalTensor delta_a = {}, initial_state = {};
    Discretization discretization = Discretization::bilinear;

    GDN_FIELDS(u, delta, A, B, C, delta_a, initial_state, discretization)
};
// (out, last state)
std::tuple<Tensor, Tensor> simplified_scan(const SimplifiedScan& arguments);

// The same, and D: (H) float32.
struct GDN_HOLDS_TENSORS S5Inner {
    Given u, delta, A, B, C, D;
    OptionalTensor delta_a = {};
    Discretization discretization = Discretization::bilinear;
    bool conj_sym = true;

    GDN_FIELDS(u, delta, A, B, C, D, delta_a, discretization, conj_sym)
};
// (2 or 1) Re(simplified_scan) + D Re(u)
Tensor s5_inner(const S5Inner& arguments);

struct GDN_HOLDS_TENSORS SimplifiedStateUpdate {
    static constexpr const char* name = "simplified_state_update";
    Written state;
    Given x, dt, A, B, C;
    OptionalTensor D = {}, delta_a = {};
    Discretization discretization = Discretization::bilinear;
    bool conj_sym = true;

    GDN_FIELDS(state, x, dt, A, B, C, D, delta_a, discretization, conj_sym)
};
// out
Tensor simplified_state_update(const SimplifiedStateUpdate& arguments);

// u: (B, H, L); A, bias: (B, N, L); B: (B, N, H, L); C: (B, H, N, L).
struct GDN_HOLDS_TENSORS S7Scan {
    Given u, A, B, C;
    OptionalTensor bias = {};

    GDN_FIELDS(u, A, B, C, bias)
};
// (out, last state)
std::tuple<Tensor, Tensor> s7_scan(const S7Scan& arguments);

// u, delta: (B, D, L); A: (D, N), in (0, 1); initial_state: (B or sequences, D, N); reset: (B, L) int32 or int64, which is not
// 0 where a sequence begins.
struct GDN_HOLDS_TENSORS RglruScan {
    Given u, delta, A;
    OptionalTensor initial_state = {}, cu_seqlens = {}, reset = {};
    bool first_multiplier = false;

    GDN_FIELDS(u, delta, A, initial_state, cu_seqlens, reset, first_multiplier)
};
// (out, last state)
std::tuple<Tensor, Tensor> rglru_scan(const RglruScan& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
