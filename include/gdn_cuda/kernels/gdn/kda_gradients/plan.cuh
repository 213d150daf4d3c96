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

    // A thread has two channels of the key and the tokens of an eighth of the chunk, which is a warp's.
    static constexpr int kTokens = 8, kEighths = kChunk / kTokens, kQuarters = kEighths / 2, kLongestValue = 128,
                         kValueTiles = kLongestValue / kTileElements, kChannels = kTileElements;
    GDN_HOST_DEVICE static constexpr int threads() { return kEighths * kChannels / 2; }
    // How many blocks take a head's chunk, as a cluster.
    GDN_HOST_DEVICE static constexpr int blocks(int dk) { return dk > kChannels ? kKdaHeadK / kChannels : 1; }
};
static_assert(kKdaHeadK == 2 * KdaGradientsConfig::kChannels && 2 * KdaGradientsConfig::kChannels == kWarpgroup);

// Tensors of the call are those of its first head and token.
struct KdaGradientsCall {
    GdnCall call;                          // one value head a key head
    Rows output_gradient, value_gradient;  // value_gradient: read; rows of tokens whose beta is 0 are cleared
    Rows query_gradient, key_gradient;
    Tagged gate_gradient, beta_gradient;  // (sequence, token, head), of gates times dk, channels contiguous; or absent
    i64 scalars_sequence, scalars_token;  // their strides, in elements of beta_gradient
    // Gradients of A_log and dt_bias over the tokens of a chunk: sums[which * sums_which + chunk index * sums_row + head *
    // dk + channel]; or nullptr.
    float* sums;
    i64 sums_which, sums_row;
    BackwardHandover from;  // prepared: KdaTrainingRecord (head, chunk)
};

struct KdaGradientsArgs {
    TensorMap query, key, output_gradient, value_gradient;  // (d, head, token, batch)
    TensorMap query_gradient, key_gradient;                 // the same
    TensorMap states, state_gradients;                      // (column, 0, row, head and chunk)
    TensorMap errors;                                       // (column, part, token, head and chunk)
    KdaGradientsCall call;
};

// ---- Shared memory

// fp32 by token and channel. Eights of channels are permuted by the row, so that fragments of products and threads' columns
// have no bank conflicts.
struct KdaChannelProducts {
    static constexpr int kRow = KdaGradientsConfig::kChannels * 4;

    unsigned char bytes[kChunk * kRow];

    GDN_HOST_DEVICE static constexpr unsigned at(unsigned row, unsigned channel) {
        return row * kRow + (channel * 4 ^ row % 4 << 5);
    }
};
// dP or U between eighths, swizzled as tiles are: a row of all but the first 16 tokens. Pairs among those are in what is above
// the diagonal.
struct alignas(1024) KdaTokenPairs {
    unsigned char bytes[(kChunk - kKdaTokens) * 128];

    // The first row and column of 16 x 16 pairs.
    GDN_HOST_DEVICE static constexpr int row_of(int quarter) { return quarter == 0 ? 0 : kKdaTokens * (quarter - 1); }
    GDN_HOST_DEVICE static constexpr int column_of(int quarter, int other) {
        return quarter == 0 ? kChunk - kKdaTokens : kKdaTokens * other;
    }
};
// dP and U within an eighth.
struct KdaEighthGradients {
    alignas(16) KdaTokenGradients::Pair at[KdaGradientsConfig::kTokens][KdaGradientsConfig::kTokens];
};
struct KdaGradientsPlan {
    static constexpr int kEighths = KdaGradientsConfig::kEighths, kQuarters = KdaGradientsConfig::kQuarters,
                         kValueTiles = KdaGradientsConfig::kValueTiles, kChannels = KdaGradientsConfig::kChannels;
    using Channels = float[kChannels];

    struct Inputs {
        SwizzledTile output_gradient[kValueTiles], value_gradient[kValueTiles];
        SwizzledTile state[kValueTiles], state_gradient[kValueTiles], error[kValueTiles];
    };
    struct Pairs {
        KdaTokenPairs queries[2],
            keys[2];  // dP and U, rounded, and the rounding residuals, without pairs of a token and itself
    };
    struct Products {
        // scale dO S, dV S and beta R E; then what each eighth's tokens have from outside of it, without decays within it. The
        // first two come in place of dO and dV while the last is formed.
        KdaChannelProducts states[3];
        union {
            Pairs pairs;
            Channels gates[kChunk];  // then, of each eighth, sums of A_log's and dt_bias's gradients
        };
        SwizzledTile earlier_key;  // keys times the decays from the token to its eighth's end
    };
    // Then times the decays from its eighth's start to each token, as operands; then their gradients, rounded.
    struct Rows {
        SwizzledTile query, key;
    };
    // What eighths have for gates of others, by channel.
    struct Carried {
        // Through the state before the chunk, of eighths from the third on; through that after it, up to the last but two.
        Channels earlier[kEighths - 2], later[kEighths - 2];
        // The same of the last quarter across the third, and of the first across the second, with their pairs of tokens across
        // it.
        Channels over_third, over_second;
        // The same within each quarter: of the second eighth across the first, and of the first across the second.
        Channels over_lower[kQuarters], over_upper[kQuarters];
    };

    union {
        Inputs inputs;
        Products products;
    };
    union {
        Rows rows;
        SwizzledTile error_residual[kValueTiles];  // before, where there is one
    };
    KdaEighthGradients blocks[kEighths];
    KdaTrainingFactors factors;
    Channels whole[kEighths];  // the product of an eighth's decays
    Carried carried;
    Channels state_product;  // sums of S E over the values
    // x.dx of queries x, and of keys, and the other block's.
    float dots[kEighths][2 * KdaGradientsConfig::kTokens], other_dots[kEighths][2 * KdaGradientsConfig::kTokens];
    float rate_log[kEighths];                                // A_log, for each warp
    float own[kChunk];                                       // dV R of a token
    unsigned long long tokens_full, states_full, rows_full;  // mbarriers: dO, dV, R and factors; S and E; keys and queries
    unsigned long long dots_full[kEighths];
    KdaPlace place;  // up to 64 tokens; in shared memory to save registers
    // Bytes to the chunk's first token and the block's first channel, in gates and in their gradients.
    struct Offsets {
        i64 gates, gate_gradient;
    } offsets;
};
static_assert(sizeof(KdaGradientsPlan) <= 113 * 1024);  // two blocks a multiprocessor

}  // namespace gdn_cuda::gdn
