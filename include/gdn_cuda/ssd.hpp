// Mamba-2's scan in C++. gdn_cuda/ssd says what it computes and takes. On a GPU x is bf16 or fp16 here, with multiples of 8
// channels and states, and up to 256 states; the Python functions compute other calls by selective_scan.
#pragma once

#include <gdn_cuda/options.hpp>
#include <limits>
#include <tuple>

#pragma GCC visibility push(default)

namespace gdn_cuda {

// States that a call writes beside the last one, (rows, H, P, N) of any float dtype: after every so many tokens, a multiple of
// 64, and before each block of them; or after checkpoint_offsets (sequences) tokens of each sequence; or after boundaries[1],
// boundaries[2] … tokens of a packed call, which every sequence's end is one of.
struct GDN_HOLDS_TENSORS SsdCheckpoints {
    int64_t checkpoint_every = 0;
    OptionalTensor checkpoint_offsets = {}, boundaries = {};
    OptionalWritten checkpoints = {}, states_before = {};

    GDN_FIELDS(checkpoint_every, checkpoint_offsets, boundaries, checkpoints, states_before)
};

// x, z: (B, T, H, P); dt: (B, T, H); A, dt_bias: (H); B, C: (B, T, G, N); D: (H) or (H, P); initial_state: (B or sequences, H,
// P, N); seq_idx: (B, T) int32.
struct GDN_HOLDS_TENSORS SsdScan {
    static constexpr const char* name = "ssd_scan";
    Given x, dt, A, B, C;
    OptionalTensor D = {}, z = {}, dt_bias = {}, initial_state = {}, cu_seqlens = {}, seq_idx = {}, has_initial_state = {};
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = std::numeric_limits<double>::infinity();
    bool deterministic = false;  // a sequence has the same bits in any batch
    OptionalWritten last_state = {};
    Output out = {};
    SsdCheckpoints reported = {};
    // With state_indices initial_state is a pool (slots, H, P, N), updated in place: the operator ssd_scan_pool in torch. With
    // write_indices alone last_state is one, written there.
    OptionalTensor state_indices = {}, write_indices = {};
    bool update_state = true;
    OptionalWritten state_scales = {};  // for an int8 pool: (slots, H, P, N / 32) fp32

    GDN_FIELDS(x, dt, A, B, C, dt_softplus, D, dt_bias, initial_state, cu_seqlens, z, has_initial_state, seq_idx, dt_lowest,
               dt_highest, deterministic)
};
// (out, last state: the pool with state_indices)
std::tuple<Tensor, Tensor> ssd_scan(const SsdScan& arguments);

struct GDN_HOLDS_TENSORS SsdSummary {
    static constexpr const char* name = "ssd_summary";
    Given x, dt, A, B;
    OptionalTensor dt_bias = {}, initial_state = {}, cu_seqlens = {};
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = std::numeric_limits<double>::infinity();

    GDN_FIELDS(x, dt, A, B, dt_bias, initial_state, cu_seqlens, dt_softplus, dt_lowest, dt_highest)
};
// (states after sequences, (sequences, H, P, N), decays over them, (sequences, H))
std::tuple<Tensor, Tensor> ssd_summary(const SsdSummary& arguments);

// Decode from a state that lacks the last tokens. x, z: (B, T, H, P), or packed (N, H, P) with cu_seqlens; the others as above
// without a batch dimension then. state_pool: (slots, H, P, N); the ring: x_ring (slots, W, H, P), B_ring (slots, W, G, N),
// delta_ring (slots, W, H) fp32, pending (slots) int32. Here x may be fp32 too.
struct GDN_HOLDS_TENSORS SsdReplayDecode {
    static constexpr const char* name = "ssd_replay_decode";
    Given x, dt, A, B, C;
    Written state_pool, x_ring, B_ring, delta_ring, pending;
    OptionalTensor D = {}, z = {}, dt_bias = {}, state_indices = {}, cu_seqlens = {};
    VerifyOptions verify = {};
    OptionalTensor fold_mask = {};      // (sequences) bool
    OptionalWritten state_scales = {};  // for an int8 pool: (slots, H, P, N / 32) fp32
    std::optional<int64_t> null_slot = {};
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = std::numeric_limits<double>::infinity();
    bool fold = false;  // every state takes every accepted token
    Output out = {};

    GDN_FIELDS(x, dt, A, B, C, state_pool, x_ring, B_ring, delta_ring, pending, dt_softplus, D, z, dt_bias, state_indices,
               cu_seqlens, verify, fold_mask, state_scales, null_slot, dt_lowest, dt_highest, fold, out)
};
// out
Tensor ssd_replay_decode(const SsdReplayDecode& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
