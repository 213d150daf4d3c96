// Products of rows of 32 tokens with the Toeplitz matrix of a channel's taps on tensor cores, in nearly fp32 accuracy.
//
// A warp has a tile of 512 consecutive tokens as a matrix of 16 rows of 32. Lane 4 g + t holds eight consecutive tokens of
// row g and eight of row g + 8, which are the 16-byte vectors `lane` and 32 + lane of a row in memory: operands and sums
// move between memory and registers unchanged. Products stay within rows; each row is multiplied by the 32 x 32 Toeplitz
// matrix whose element (source, target) is h[target - source].
//
// The summed index and the columns of an mma may be permuted freely if both operands agree. So pair p of a lane's eight
// tokens is a pair of the summed index, and columns are assigned so that a lane's sums are those of its own eight tokens:
//     summed index: lane t, pair p, i = 0, 1          source token 8 t + 2 p + i
//     columns of sums[j]: column c                    target token 8 (c / 2) + 2 j + c % 2
// A right operand is then the pair h[x], h[x - 1] with x = 8 (g / 2 - t) + g % 2 + 2 (j - p): seven pairs for all j and p.
// Shared memory has two tables of such pairs, for even and for odd x, so that a pair is one word; a warp's words are in
// different banks.
//
// Values are sums of bf16 parts, each the rounded remainder of the value minus the earlier parts: two hold 16 bits, which is
// exact for a product of two bf16 values, and three hold 24. A product uses the products of parts above the last bit of the
// longer factor. Sums are fp32. An infinity or NaN makes all tokens of its row NaN.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kPairs = 7;  // per lane

template <int kParts>
__device__ __forceinline__ void split_pair(unsigned (&parts)[kParts], float first, float second) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        parts[part] = pack<DType::bf16>(first, second);
        const float2 rounded = unpack<DType::bf16>(parts[part]);
        first -= rounded.x;
        second -= rounded.y;
    }
}
// Calls product(left part, right part) for the products of parts that count, small ones first.
template <int kLeft, int kRight>
__device__ __forceinline__ void for_products(auto&& product) {
    constexpr int kMost = kLeft > kRight ? kLeft : kRight;
#pragma unroll
    for (int both = kMost - 1; both >= 0; --both)
#pragma unroll
        for (int left = both; left >= 0; --left)
            if (left < kLeft && both - left < kRight) product(left, both - left);
}

// A tile as left operands; [part][rows g, g + 8][pair].
template <int kParts>
struct TileParts {
    unsigned at[kParts][2][4];

    __device__ __forceinline__ static TileParts of(const float (&u)[2][8]) {
        TileParts parts;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                unsigned pair[kParts];
                split_pair(pair, u[half][2 * p], u[half][2 * p + 1]);
#pragma unroll
                for (int part = 0; part < kParts; ++part) parts.at[part][half][p] = pair[part];
            }
        return parts;
    }
    // The operand of one part and 16 of the 32 summed tokens.
    __device__ __forceinline__ void left(unsigned (&a)[4], int part, int k) const {
        a[0] = at[part][0][2 * k];
        a[1] = at[part][1][2 * k];
        a[2] = at[part][0][2 * k + 1];
        a[3] = at[part][1][2 * k + 1];
    }
};

// Sums of a tile: sums[j][2 half + i] is the lane's token 2 j + i of rows g (half 0) and g + 8.
using TileSums = float[4][4];

template <int kParts>
struct BlockTaps {
    unsigned pairs[kParts][kPairs];
};

// sums += tile * block
template <int kTileParts, int kTapParts>
__device__ __forceinline__ void add_product(TileSums& sums, const TileParts<kTileParts>& tile,
                                            const BlockTaps<kTapParts>& taps) {
    for_products<kTileParts, kTapParts>([&](int left, int right) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            unsigned a[4];
            tile.left(a, left, k);
#pragma unroll
            for (int j = 0; j < 4; ++j)
                mma_m16n8k16<DType::bf16>(sums[j], a, taps.pairs[right][j - 2 * k + 3], taps.pairs[right][j - 2 * k + 2]);
        }
    });
}

// Called by all lanes; `tap(x)` is h[x], 0 outside of the filter. A __syncwarp has to follow.
template <int kParts>
__device__ __forceinline__ void fill_pairs(PairTables<kParts>& tables, int lane, auto&& tap) {
    using Tables = PairTables<kParts>;
    for (int parity = 0; parity < 2; ++parity)
        for (int i = lane; i < Tables::kPairs; i += 32) {
            const int x = 2 * (i - Tables::kBefore) + parity;
            unsigned pair[kParts];
            split_pair(pair, tap(x), tap(x - 1));
#pragma unroll
            for (int part = 0; part < kParts; ++part) tables.words[part][parity * Tables::kStride + i] = pair[part];
        }
}
template <int kParts>
__device__ __forceinline__ BlockTaps<kParts> load_pairs(const PairTables<kParts>& tables, int lane) {
    using Tables = PairTables<kParts>;
    const int g = lane / 4, t = lane % 4;
    const int first = (g % 2) * Tables::kStride + Tables::kBefore + 4 * (g / 2 - t) - 3;
    BlockTaps<kParts> taps;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) taps.pairs[part][i] = tables.words[part][first + i];
    return taps;
}

}  // namespace gdn_cuda::conv
