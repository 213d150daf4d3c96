// Configuration, shared memory and arguments of gdn/ring_decode, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/ring_plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

struct RingDecodeConfig {
    int head_k;   // the tensors' dk, rounded up: 64, 128 or 256
    DType io;     // query, key, value, output and the ring's keys
    DType state;  // in memory; sums are fp32
    int entries;  // room for the ring: 16 or 32
    int tokens;   // the most new tokens of a sequence: 1, 4 or 16; 1: not packed

    constexpr bool operator==(const RingDecodeConfig&) const = default;

    GDN_FIELDS(head_k, io, state, entries, tokens)

    static constexpr int kWarps = 4, kTileRows = 16;
    static constexpr int kVectorElements = 8;  // elements of a key or query in 16 bytes
    GDN_HOST_DEVICE static constexpr int threads() { return 32 * kWarps; }
    // Updates in the ring are rounded where the state is.
    GDN_HOST_DEVICE constexpr DType updates() const { return state == DType::f32 ? DType::f32 : io; }
    // Products with states of 16 bits are those of tensor cores, exact but for their sums.
    GDN_HOST_DEVICE constexpr bool tensor_cores() const { return state != DType::f32; }
    GDN_HOST_DEVICE constexpr bool codes() const { return state == DType::i8; }
    GDN_HOST_DEVICE constexpr DType product() const { return codes() ? DType::f16 : state; }  // their operands
    GDN_HOST_DEVICE constexpr bool splits() const { return tensor_cores() && (codes() || io != state); }
    GDN_HOST_DEVICE constexpr int parts() const { return splits() ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int groups() const { return codes() ? head_k / kCodeGroup : 0; }  // groups in a row, a scale each
    GDN_HOST_DEVICE constexpr int state_vectors() const { return head_k * bytes_of(state) / 16; }
    GDN_HOST_DEVICE constexpr int token_vectors() const { return head_k / kVectorElements; }
    GDN_HOST_DEVICE constexpr int most_rows() const {
        const int most = tokens > 4 && head_k > 128 ? 8 << 10 : 32 << 10, rows = most / (head_k * bytes_of(state));
        return rows < kTileRows ? kTileRows : rows < threads() ? rows : threads();
    }
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return tokens > 4 ? 2 : tokens > 1 ? 4 : codes() ? 7 : 5; }
};

template <RingDecodeConfig kConfig>
struct RingDecodeSharedPlan {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    static constexpr int kTokens = kConfig.tokens, kVectors = 2 * kTokens, kRows = kConfig.most_rows();
    static constexpr int kColumns = kVectors < 8 ? 8 : kVectors;  // columns of a tensor-core product

    Vector state[kRows][kConfig.state_vectors()];
    alignas(16) float scales[kConfig.codes() ? kRows * kConfig.groups() : 4];  // the state's: rows of dk / 32
    Vector tokens[kVectors][kConfig.token_vectors()];  // key and query of the first new token, of the second, ...
    Vector parts[kConfig.splits() ? 2 * kVectors : 1]
                [kConfig.token_vectors()];              // each, times a power of 2, in two of the products' dtype
    float part_scale[kConfig.splits() ? kVectors : 1];  // the inverse of that power
    Vector keys[kConfig.entries][kConfig.token_vectors()];
    Vector updates[kConfig.entries][kRows * bytes_of(kConfig.updates()) / 16];
    float products[kVectors][kRows];                 // rows of the state times keys and queries; then updates in place of keys'
    float stored_scores[kConfig.entries][kColumns];  // the ring's keys times keys and queries
    float scores[kVectors][kColumns];                // keys and queries times each other
    float decay[kTokens], beta[kTokens];
    float after[kConfig.entries];  // the decay after an entry of the ring, up to the new tokens
    float state_decay;             // over all entries
    int is_last;                   // whether every other block of the sequence has read the ring
};

struct RingDecodeArgs : RingArgs {
    Rows query, key, value, output;
    bool whole_vectors;  // whether rows of keys and queries begin at multiples of 16 bytes
    Scalars beta, gate;  // b and a, before sigmoid and softplus
    float beta_factor;   // beta is this times a sigmoid
    Tagged A_log, dt_bias;
    int heads, heads_per_key, dk, dv;
    int row_blocks;  // blocks of a head
    float scale;
    bool qk_norm;

    RingTensor keys;     // (slots, W, Hk, dk), as given
    RingTensor updates;  // (slots, W, Hv, dv): v' times the key's scale
    RingTensor decays;   // (slots, W, Hv), fp32
};

}  // namespace gdn_cuda::gdn
