// Configuration, shared memory and arguments of gdn/kda_gradients, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/kda/training_record.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/plan.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

struct KdaGradientsConfig {
    DType io;

    constexpr bool operator==(const KdaGradientsConfig&) const = default;

    GDN_FIELDS(io)

    // A thread has a channel of the key and the tokens of a quarter of the chunk: a quarter is a warpgroup's.
    static constexpr int kQuarters = kChunk / kKdaTokens, kLongestValue = 128, kValueTiles = kLongestValue / kTileElements;
    GDN_HOST_DEVICE static constexpr int threads() { return kQuarters * kKdaHeadK; }
};
static_assert(kKdaHeadK == kWarpgroup);

// Tensors of the call are those of its first head and token.
struct KdaGradientsCall {
    GdnCall call;                          // one value head a key head
    Rows output_gradient, value_gradient;  // value_gradient: read; rows of tokens whose beta is 0 are cleared
    Rows query_gradient, key_gradient;
    Tagged gate_gradient, beta_gradient;  // (sequence, token, head), of gates times dk, channels contiguous; or absent
    i64 scalars_sequence, scalars_token;  // their strides, in elements of beta_gradient
    // Of A_log's and dt_bias's gradients over the tokens of a chunk: sums[which * sums_which + chunk index * sums_row + head *
    // dk + channel]; or nullptr.
    float* sums;
    i64 sums_which, sums_row;
    BackwardHandover from;  // prepared: KdaTrainingRecord (head, chunk)
};

struct KdaGradientsArgs {
    TensorMap query, key, output_gradient, value_gradient;  // (d, head, token, batch)
    TensorMap states, state_gradients;                      // (column, 0, row, head and chunk)
    TensorMap errors;                                       // (column, part, token, head and chunk)
    KdaGradientsCall call;
};

// ---- Shared memory

// fp32 by token and channel. Columns are permuted so that wgmma's and warp MMAs' fragments, and threads' columns, have no bank
// conflicts.
struct KdaChannelProducts {
    float values[kChunk][kKdaHeadK];

    GDN_HOST_DEVICE float& at(int token, int channel) { return values[token][channel ^ token % 4 * 8]; }
};
// Half of a chunk's tokens times decays, operands of products: rows of 64 channels, swizzled as tiles are.
struct alignas(1024) KdaHalfRows {
    unsigned char bytes[kKdaTiles][kChunk / 2 * 128];
};
struct KdaGradientsPlan {
    struct Inputs {
        SwizzledTile state[KdaGradientsConfig::kValueTiles][kKdaTiles],
            state_gradient[KdaGradientsConfig::kValueTiles][kKdaTiles];
        SwizzledTile output_gradient[KdaGradientsConfig::kValueTiles], value_gradient[KdaGradientsConfig::kValueTiles];
        SwizzledTile error[KdaGradientsConfig::kValueTiles], error_residual[KdaGradientsConfig::kValueTiles];
    };
    struct Products {
        KdaChannelProducts states[3];  // of dO S, dV S and R E; then what quarters have of pairs with tokens of others
        // dP and U, rounded and the rounding residual. Only pairs of tokens of different quarters are read.
        SwizzledTile queries[2], keys[2];
    };
    // Keys and queries times products of decays to and from the border between the halves of 64 tokens (far), and those of 32
    // tokens (near).
    struct Operands {
        KdaHalfRows far_query, far_key, far_lower;
        KdaHalfRows near_query, near_key, near_lower;
    };
    struct Sums {
        float A_log[KdaGradientsConfig::kQuarters][kKdaHeadK], dt_bias[KdaGradientsConfig::kQuarters][kKdaHeadK];
    };
    // What one quarter has for gates of others, by channel.
    struct Carried {
        float after[KdaGradientsConfig::kQuarters]
                   [kKdaHeadK];  // through the state before the chunk: for gates before the quarter
        float before[KdaGradientsConfig::kQuarters][kKdaHeadK];  // through the state after it: for gates after the quarter
        float far_upper[kKdaHeadK];                              // pairs of the last quarter with the first two: for the third
        float far_lower[kKdaHeadK];                              // pairs of the first quarter with the last two: for the second
    };

    union {
        Inputs inputs;
        Products products;
    };
    SwizzledTile key[kKdaTiles], query[kKdaTiles];  // their gradients, rounded, take their place
    union {
        float state_products[KdaGradientsConfig::threads() / kWarpgroup * 2][kKdaHeadK];  // of S E, by some rows
        Operands operands;
        float gates[kChunk][kKdaHeadK];
    };
    KdaTokenGradients blocks[KdaGradientsConfig::kQuarters];  // dP and U within a quarter
    KdaTrainingFactors factors;
    float totals[KdaGradientsConfig::kQuarters][kKdaHeadK];  // products of a quarter's decays
    union {
        Carried carried;
        Sums sums;
    };
    float own[kChunk];  // dV R of a token
    // Of queries and of keys with their gradients, by warps of a quarter; the first row becomes the sums.
    float dots[KdaGradientsConfig::kQuarters][kWarpgroup / 32][2 * kKdaTokens];
    unsigned long long full;  // an mbarrier
};
static_assert(sizeof(KdaGradientsPlan) <= 227 * 1024);

}  // namespace gdn_cuda::gdn
