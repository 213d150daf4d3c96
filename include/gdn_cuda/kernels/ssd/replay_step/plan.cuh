// Configuration, shared memory and arguments of ssd/replay_step, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/ring_plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>
#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

namespace gdn_cuda::ssd {

struct ReplayStepConfig {
    DType io;     // x, z, B, C, the output, and the ring's x and B
    DType state;  // in memory; registers hold fp32
    int states;   // N, rounded up: 64, 128 or 256
    int tokens;   // the most new tokens of a sequence: 1 or 16

    constexpr bool operator==(const ReplayStepConfig&) const = default;

    GDN_FIELDS(io, state, states, tokens)

    static constexpr int kLanes = 8;  // of a row of the state
    static constexpr int kHeads = 4;  // of a block, at most: a warp each
    GDN_HOST_DEVICE static constexpr int threads() { return 32 * kHeads; }
    GDN_HOST_DEVICE static constexpr int groups() { return threads() / kLanes; }  // of lanes, a row each at a time
    GDN_HOST_DEVICE constexpr bool codes() const { return state == DType::i8; }
    GDN_HOST_DEVICE constexpr int code_groups() const { return codes() ? states / gdn::kCodeGroup : 1; }  // in a row
    GDN_HOST_DEVICE constexpr int vector() const { return 16 / bytes_of(state); }
    // 16-byte vectors that a lane has of a row.
    GDN_HOST_DEVICE constexpr int row_vectors() const { return states / (vector() * kLanes); }
    GDN_HOST_DEVICE constexpr int lane_columns() const { return vector() * row_vectors(); }
    // A thread has 256 bytes of the state in flight, in registers, and no more than 8 rows of it.
    GDN_HOST_DEVICE constexpr int thread_rows() const { return row_vectors() < 2 ? 8 : 16 / row_vectors(); }
    GDN_HOST_DEVICE constexpr int most_rows() const { return groups() * thread_rows(); }  // of a block; at most a thread each
    // Rows that are widened to fp32 at once where the state is written.
    GDN_HOST_DEVICE constexpr int wide_rows() const { return bytes_of(state) == 4 ? thread_rows() : 32 / lane_columns(); }
    // Blocks per SM, for which registers are limited: with many tokens as many as shared memory has room for, or less where
    // registers would spill.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        if (codes()) return tokens > 1 ? (states > 128 ? 2 : 3) : states > 64 ? 4 : 5;
        if (tokens == 1) return 4;
        if (io == DType::f32) return bytes_of(state) == 2 && states > 64 ? 2 : 3;
        return states == 64 ? 3 : 4;
    }
};

// A block's tokens: new ones, then entries of the ring.
template <ReplayStepConfig kConfig>
struct ReplayStepSharedPlan {
    static constexpr int kTokens = kConfig.tokens, kEntries = kMostRingEntries + kTokens;
    struct alignas(16) Columns {
        unsigned char bytes[kConfig.states * bytes_of(kConfig.io)];
    };
    struct alignas(16) Channels {
        unsigned char bytes[kConfig.most_rows() * bytes_of(kConfig.io)];
    };
    // What a token sees of the past.
    struct Past {
        float state_decay;            // 0: nothing of the state in memory is left
        int first_stored, first_new;  // the first entry, and the first new token, of which anything is left
    };

    Columns B[kEntries], C[kTokens];
    Channels x[kEntries];
    float products[kTokens][kConfig.most_rows()];  // rows of the state times C
    float scores[kTokens][kEntries];               // C times B
    // For every new token; the last row is for a state that is written without new tokens.
    float weights[ReplayStepConfig::kHeads][kTokens + 1][kEntries];  // the decay after an entry, times its δ
    Past past[ReplayStepConfig::kHeads][kTokens + 1];
    int is_last;  // whether every other block of the sequence has read the ring

    // For int8 states: each C, times a power of two, as a sum of two vectors of fp16.
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    static constexpr int kParts = kConfig.codes() ? 2 * kTokens : 1;
    Vector parts[kParts][kConfig.codes() ? kConfig.states / 8 : 1];
    float part_scale[kParts];  // of each C, the inverse of that power
};

struct ReplayStepArgs : RingArgs {
    Rows x, z, out;    // (batch, token, head, channel); z may be absent
    Rows B, C;         // (batch, token, group, state)
    bool whole_units;  // whether rows of x, B and C begin at multiples of 16 bytes
    Scalars dt;
    PerHead A, dt_bias, D;              // dt_bias and D may be absent
    float lowest = 0.f, highest = 0.f;  // of δ
    bool softplus = false;
    int heads, groups, channels, states;
    int group_heads;  // heads of a group

    RingTensor x_ring;      // (slots, W, H, P)
    RingTensor B_ring;      // (slots, W, G, N)
    RingTensor delta_ring;  // (slots, W, H), fp32
};

}  // namespace gdn_cuda::ssd
