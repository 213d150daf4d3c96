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

    // A thread has a channel of the key and the tokens of a quarter of the chunk: a quarter is two warps'.
    static constexpr int kQuarters = kChunk / kKdaTokens, kLongestValue = 128, kValueTiles = kLongestValue / kTileElements,
                         kChannels = kTileElements;
    // The least product of the decays of half of a quarter whose reciprocal may scale an operand. Gradients of gates then are
    // differences of sums over a quarter's pairs, so that decays must not be much smaller than 1.
    static constexpr float kSlow = 1.f / 16;
    GDN_HOST_DEVICE static constexpr int threads() { return kQuarters * kChannels; }
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
// dP or U, swizzled as tiles are: a row of all but the first 16 tokens. Pairs among those are in what is above the diagonal.
struct alignas(1024) KdaTokenPairs {
    unsigned char bytes[(kChunk - kKdaTokens) * 128];

    // The first row and column of 16 x 16 pairs.
    GDN_HOST_DEVICE static constexpr int row_of(int quarter) { return quarter == 0 ? 0 : kKdaTokens * (quarter - 1); }
    GDN_HOST_DEVICE static constexpr int column_of(int quarter, int other) {
        return quarter == 0 ? kChunk - kKdaTokens : kKdaTokens * other;
    }
};
struct KdaGradientsPlan {
    static constexpr int kQuarters = KdaGradientsConfig::kQuarters, kValueTiles = KdaGradientsConfig::kValueTiles,
                         kChannels = KdaGradientsConfig::kChannels;
    static constexpr int kStateProducts = KdaGradientsConfig::threads() / (kChannels / 2);
    using Channels = float[kChannels];

    struct Inputs {
        SwizzledTile output_gradient[kValueTiles], value_gradient[kValueTiles];
        SwizzledTile state[kValueTiles], state_gradient[kValueTiles], error[kValueTiles];
    };
    struct Pairs {
        KdaTokenPairs queries[2],
            keys[2];  // dP and U, rounded, and the rounding residuals, without pairs of a token and itself
    };
    struct Kept {
        Channels gates[kChunk];  // then, of each quarter, sums of A_log's and dt_bias's gradients
        unsigned queries[kKdaTokens / 4][KdaGradientsConfig::threads()];  // pairs of half of a thread's tokens
    };
    struct Products {
        // scale dO S, dV S and beta R E; then what each quarter's tokens have from outside of it, without decays within it. The
        // first two come in place of dO and dV while the last is formed.
        KdaChannelProducts states[3];
        union {
            Pairs pairs;
            Kept kept;
        };
        SwizzledTile earlier_key;  // keys times the decays from the token to a border
    };
    // Then times the decays from a border to each token, as operands; then their gradients, rounded.
    struct Rows {
        SwizzledTile query, key;
    };
    // What quarters have for gates of others, by channel.
    struct Carried {
        Channels earlier[kQuarters - 1];   // through the state before the chunk, of all quarters but the first
        Channels later[kQuarters - 1];     // through the state after it, of all but the last
        Channels over_third, over_second;  // pairs of tokens on either side of a quarter
    };

    union {
        Inputs inputs;
        Products products;
    };
    union {
        Rows rows;
        SwizzledTile error_residual[kValueTiles];  // before, where there is one
    };
    KdaTokenGradients blocks[kQuarters];  // dP and U within a quarter
    KdaTrainingFactors factors;
    Channels before[kQuarters], after[kQuarters];  // where decays are slow, those of each half of a quarter, or else 1
    union {
        Channels whole[kQuarters];                              // a quarter's decays, or 1 where they are slow
        float dots[kQuarters][kChannels / 32][2 * kKdaTokens];  // x.dx of queries x, and of keys
    };
    union {
        Channels state_products[kStateProducts];  // sums of S E over some of the rows each
        Carried carried;
    };
    Channels state_product;  // the sum of S E over all rows
    // Decays from the chunk's start to each quarter's border, and from that to the chunk's end; a warp uses its own.
    union {
        Channels earlier[kQuarters];
        Channels within[kQuarters];  // sums over pairs within a quarter, where decays are slow
    };
    union {
        Channels later[kQuarters];
        float other_dots[kQuarters][2 * kKdaTokens];  // the other block's
    };
    float own[kChunk];                                       // dV R of a token
    unsigned long long tokens_full, states_full, rows_full;  // mbarriers: dO, dV, R and factors; S and E; keys and queries
    unsigned long long dots_full[kQuarters];
    KdaPlace place;  // up to 64 tokens; in shared memory to save registers
};
static_assert(sizeof(KdaGradientsPlan) <= 113 * 1024);  // two blocks a multiprocessor

}  // namespace gdn_cuda::gdn
