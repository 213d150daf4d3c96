// What the kernels of Kimi Delta Attention's backward share: configurations, arguments, and what they hand over in global
// memory; for host and device. A chunk has 16 tokens: then what is between its tokens is one fragment of a warp's MMA, and
// decays between any two of them are products of few factors.
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>
#include <gdn_cuda/kernels/gdn/backward/handover.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

constexpr int kKdaTokens = 16;

struct KdaBackwardConfig {
    int head_k;  // 64, 128 or 256; shorter keys are zero-padded
    DType io;

    constexpr bool operator==(const KdaBackwardConfig&) const = default;

    GDN_FIELDS(head_k, io)

    // A thread has a channel of the key.
    GDN_HOST_DEVICE constexpr int threads() const { return head_k; }
    GDN_HOST_DEVICE constexpr int warps() const { return head_k / 32; }
    // Blocks of gdn/kda_backward_gradients on a multiprocessor: 128 registers a thread.
    GDN_HOST_DEVICE constexpr int gradient_blocks() const { return 512 / head_k; }
};

// A matrix of a chunk's tokens as a right operand of tf32 MMAs: lane (g, t) has rows 8 s + 2 t and + 1 of column 8 m + g at
// four adjacent values for each m.
struct KdaTokenMatrix {
    float values[kKdaTokens * kKdaTokens];

    GDN_HOST_DEVICE static constexpr int at(int row, int column) {
        return column / 8 * 128 + (column % 8 * 4 + row % 8 / 2) * 4 + row / 8 * 2 + row % 2;
    }
};

// What a chunk does to states and their gradients, of a value head. Rows of 16-bit elements.
template <int kHeadK>
struct alignas(128) KdaBackwardRecord {
    unsigned short key_in[kKdaTokens][kHeadK];    // gamma k: decayed from the state before the chunk to the token
    unsigned short key_out[kKdaTokens][kHeadK];   // kappa k: from the token to the state after the chunk
    unsigned short query_in[kKdaTokens][kHeadK];  // scale gamma q
    KdaTokenMatrix scores;                        // P
    KdaTokenMatrix inverse_transposed;            // (I + diag(beta) N)^-1: multiplies gradients from the right
    KdaTokenMatrix inverse;                       // (I + N diag(beta))^-1 transposed, which multiplies X^T from the right
    float decay[kHeadK];                          // of the chunk
    float beta[kKdaTokens], key_norm[kKdaTokens], query_norm[kKdaTokens];  // inverse norms, or 1
};

// For each head of a group and chunk, in this order. Rows of states are `head_k` columns, in the order of kda_column.
struct KdaBackwardHandover {
    void* records;
    void* states;           // S before the chunk, (dv, head_k), rounded to 16 bits
    void* state_gradients;  // E after the chunk
    void* by_error;         // Y = dV / beta, (token, dv)
    void* errors;           // R = V' / beta, (part, token, dv): rounded, and the residual
    i64 chunks;             // in all sequences
};

// A chunk of a sequence.
struct KdaPlace {
    i64 sequence, first;  // of tensors: 0 where sequences are packed; the first token along the token stride
    int tokens;
};

// The channel that is stored at a column of a state: a lane's accumulators of four adjacent MMA tiles are contiguous.
GDN_HOST_DEVICE constexpr int kda_column_channel(int column) {
    return column / 32 * 32 + column % 8 / 2 * 8 + column % 32 / 8 * 2 + column % 2;
}

struct KdaBackwardArgs {
    GdnCall call;  // all heads'
    int first_head;
    KdaBackwardHandover to;
};

// The chains: states forwards in time, from values and the initial state; gradients of states backwards, from the outputs'
// gradients and the final state's, in place of those.
struct KdaBackwardStatesConfig {
    int head_k;
    DType io;
    Direction direction;

    constexpr bool operator==(const KdaBackwardStatesConfig&) const = default;

    GDN_FIELDS(head_k, io, direction)

    GDN_HOST_DEVICE static constexpr int threads() { return 128; }
    GDN_HOST_DEVICE static constexpr int rows_per_block() { return 64; }  // 16 a warp
    GDN_HOST_DEVICE constexpr int stages() const { return head_k > 128 ? 2 : 3; }
    GDN_HOST_DEVICE constexpr int least_blocks() const { return head_k > 128 ? 1 : 3; }
};

// Segments of every sequence along time, which chains take all at once. A summary of a segment is what it does to any state:
//     S_after = S_before M + U    E_before = E_after M^T + N
// The chain forwards computes U from S = 0, and M from S = 1 without values; the one backwards N from E = 0.
struct KdaBackwardSegments {
    int count = 1;
    bool summaries = false;    // nothing but them is stored
    bool values, first, last;  // which are wanted: U or N; M of the first and of the last segment
    float* boundaries;         // (boundary, sequence, head, dv, dk) after each segment but the last: U or N, S or E
    float* transitions;        // M, (segment, sequence, head, dk, dk)
};
// The chunks of a segment of a sequence.
struct KdaSegment {
    int first, end;
};
GDN_HOST_DEVICE constexpr KdaSegment kda_segment(int chunks, int count, int segment) {
    const int each = chunks / count, more = chunks % count;  // the first `more` have one more
    const int first = each * segment + (segment < more ? segment : more);
    return {first, first + each + (segment < more)};
}

struct KdaBackwardStatesArgs {
    Rows value, value_gradient;     // value or the outputs' gradient; of the chain of gradients
    RecurrentStates initial, last;  // fp32, contiguous; `last` may be absent, and an absent `initial` is 0
    KdaBackwardHandover to;         // those of its results that are wanted; no others are stored
    KdaBackwardSegments segments;
    Tagged cu_seqlens;
    int sequences, tokens, first_head, dk, dv;
};

struct KdaBackwardGradientsArgs {
    GdnCall call;
    Rows output_gradient, query_gradient, key_gradient;
    Tagged gate_gradient, beta_gradient;  // (sequence, token, head, channel) and (sequence, token, head), contiguous; or absent
    float* sums;  // (2, chunk, head, dk): of A_log's and dt_bias's gradients over the chunk's tokens; or nullptr
    int first_key_head;
    KdaBackwardHandover from;
};

// ---- Shared memory

// A chunk in shared memory. Rows of 16-byte vectors, one more than they need: no bank conflicts of ldmatrix.
template <KdaBackwardStatesConfig kConfig>
struct alignas(16) KdaChainStage {
    static constexpr bool kBackward = kConfig.direction == Direction::backward;

    unsigned short key_in[kKdaTokens][kConfig.head_k + 8], key_out[kKdaTokens][kConfig.head_k + 8];
    unsigned short query_in[kBackward ? kKdaTokens : 1][kConfig.head_k + 8];
    unsigned short values[kKdaTokens][kConfig.rows_per_block() + 8];  // or gradients of outputs
    KdaTokenMatrix inverse, scores;
    float decay[kConfig.head_k];
    float beta[kKdaTokens];
};
template <KdaBackwardStatesConfig kConfig>
struct KdaChainPlan {
    KdaChainStage<kConfig> stages[kConfig.stages()];
};

// A chunk's keys and queries as they are in global memory, zeros where there are none. Their gradients, rounded, take their
// place.
template <int kHeadK>
struct alignas(16) KdaInputRows {
    unsigned short key[kKdaTokens][kHeadK], query[kKdaTokens][kHeadK];
};

// 16 rows of a state, and of its gradient, with what tokens have at the same values. Rows of 16-byte vectors, one more than
// they need: no bank conflicts of ldmatrix.
template <int kHeadK>
struct alignas(16) KdaSlab {
    static constexpr int kRows = 16, kTokenRows = 4;

    unsigned short states[kRows][kHeadK + 8], state_gradients[kRows][kHeadK + 8];
    unsigned short tokens[kTokenRows][kKdaTokens][kRows + 8];  // dO, Y, and R's two parts
};
// Products by token and channel, dO S, Y S and R E, and then the gates. Rows of 16-byte vectors, one more than they need.
template <int kHeadK>
struct KdaStateProducts {
    float values[4][kKdaTokens][kHeadK + 4];
};

// Gradients of scores of a row and column, of query and key (dP) and of key and key (U).
struct KdaTokenGradients {
    struct alignas(8) Pair {
        float query, key;
    };
    alignas(16) Pair at[kKdaTokens][kKdaTokens];
};

template <int kHeadK>
struct KdaBackwardGradientsPlan {
    static constexpr int kSlabs = 3;

    union {
        KdaSlab<kHeadK> slabs[kSlabs];
        KdaStateProducts<kHeadK> products;
    };
    KdaInputRows<kHeadK> rows;
    KdaTokenGradients tokens;
    float kept[kHeadK];
    float beta[kKdaTokens], key_norm[kKdaTokens], query_norm[kKdaTokens];
    float own[kKdaTokens];                    // Y R of a token
    float dots[kHeadK / 32][2 * kKdaTokens];  // of queries and of keys with their gradients; the first row becomes the sums
    KdaPlace place;                           // in shared memory because gradients need the registers
};

}  // namespace gdn_cuda::gdn
