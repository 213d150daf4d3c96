// Products with Toeplitz matrices of a channel's taps on tensor cores, in nearly fp32 accuracy.
//
// A warp has a tile of 512 neighbouring tokens as a matrix of 16 rows of 32. Lane 4 g + t holds eight neighbouring tokens of
// row g and eight of row g + 8, which are the vectors of 16 bytes numbered `lane` and 32 + lane of a row in memory: operands
// and sums move between memory and registers as they are. Toeplitz block m multiplies the rows m rows (32 m tokens) before by
//     block m (32 x 32): element (source, target) = h[32 m + target - source], where h is 0 outside of the filter.
//
// mma.sync numbers the summed index and the columns as it likes, if only both operands agree. So the pair p of a lane's eight
// tokens is a pair of the summed index, and columns are dealt out such that sums come as a lane's own eight tokens:
//     summed index: lane t, pair p, i = 0, 1          source token 8 t + 2 p + i
//     columns of sums[j]: column c                    target token 8 (c / 2) + 2 j + c % 2
// A right operand is then the pair h[x], h[x - 1] with x = 32 m + 8 (g / 2 - t) + g % 2 + 2 (j - p): seven pairs for all j and
// p. There are two tables of such pairs in shared memory, for even and odd x, so that a pair is one word; a warp's words lie in
// different banks.
//
// The transposed block, whose element (source, target) is h[32 m + source - target], multiplies the rows m rows after: of a
// filter backwards in time. Its pairs are h[x - 1], h[x] with x = 32 m + 8 (t - g / 2) - g % 2 + 2 (p - j) + 1, words of the
// same tables with their halves swapped.
//
// Numbers are sums of bf16 parts, each the rounded rest of those before it: two hold 16 bits, which is exact for a product of
// two bf16, and three hold 24. A product takes those of parts that are above the last bit of the longer factor. Sums are fp32.
// An infinity or NaN makes NaN of all tokens whose row meets its row.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kPairs = 7;  // of a block and lane

template <int kParts>
__device__ __forceinline__ void split_pair(unsigned (&parts)[kParts], float first, float second) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        parts[part] = pack<DType::bf16>(first, second);
        const float2 taken = unpack<DType::bf16>(parts[part]);
        first -= taken.x;
        second -= taken.y;
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
    // A lane's number i of a half, from its parts.
    __device__ __forceinline__ float number(int half, int i) const {
        float sum = 0.f;
#pragma unroll
        for (int part = kParts - 1; part >= 0; --part) {
            const float2 pair = unpack<DType::bf16>(at[part][half][i / 2]);
            sum += i % 2 == 0 ? pair.x : pair.y;
        }
        return sum;
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

// The pairs of one block.
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

// By all lanes; `tap(x)` is h[x], 0 outside of the filter. A __syncwarp has to follow.
template <int kBlocks, int kParts>
__device__ __forceinline__ void fill_pairs(PairTables<kBlocks, kParts>& tables, int lane, int blocks, auto&& tap) {
    using Tables = PairTables<kBlocks, kParts>;
    const int used = 16 * (blocks - 1) + 2 * Tables::kBefore + 1;
    for (int parity = 0; parity < 2; ++parity)
        for (int i = lane; i < used; i += 32) {
            const int x = 2 * (i - Tables::kBefore) + parity;
            unsigned pair[kParts];
            split_pair(pair, tap(x), tap(x - 1));
#pragma unroll
            for (int part = 0; part < kParts; ++part) tables.words[part][parity * Tables::kStride + i] = pair[part];
        }
}
template <int kBlocks, int kParts>
__device__ __forceinline__ BlockTaps<kParts> load_pairs(const PairTables<kBlocks, kParts>& tables, int lane, int block) {
    using Tables = PairTables<kBlocks, kParts>;
    const int g = lane / 4, t = lane % 4;
    const int first = (g % 2) * Tables::kStride + Tables::kBefore + 16 * block + 4 * (g / 2 - t) - 3;
    BlockTaps<kParts> taps;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < kPairs; ++i) taps.pairs[part][i] = tables.words[part][first + i];
    return taps;
}

// Of the transposed block.
template <int kBlocks, int kParts>
__device__ __forceinline__ BlockTaps<kParts> load_transposed_pairs(const PairTables<kBlocks, kParts>& tables, int lane,
                                                                   int block) {
    using Tables = PairTables<kBlocks, kParts>;
    const int g = lane / 4, t = lane % 4;
    const int first = (1 - g % 2) * Tables::kStride + Tables::kBefore + 16 * block + 4 * (t - g / 2) - 3;
    BlockTaps<kParts> taps;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
            taps.pairs[part][kPairs - 1 - i] = __byte_perm(tables.words[part][first + i], 0, 0x1032);
    return taps;
}

template <int kPieces, int kParts>
__device__ __forceinline__ uint4& piece_of(TileRing<kPieces, kParts>& ring, int part, int piece) {
    return *reinterpret_cast<uint4*>(ring.pieces[part][piece & (kPieces - 1)]);
}
// Pair `number` counts pairs of tokens as pieces count eights.
template <int kPieces, int kParts>
__device__ __forceinline__ void store_pair(TileRing<kPieces, kParts>& ring, int number, float first, float second) {
    const int at = number & (4 * kPieces - 1);
    unsigned pair[kParts];
    split_pair(pair, first, second);
#pragma unroll
    for (int part = 0; part < kParts; ++part) ring.pieces[part][at / 4][at % 4] = pair[part];
}
// `piece`: the number of the tile's first one.
template <int kPieces, int kParts>
__device__ __forceinline__ void store_half(TileRing<kPieces, kParts>& ring, const TileParts<kParts>& tile, int piece, int half,
                                           int lane) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
        const unsigned(&x)[4] = tile.at[part][half];
        piece_of(ring, part, piece + 32 * half + lane) = {x[0], x[1], x[2], x[3]};
    }
}
template <int kPieces, int kParts>
__device__ __forceinline__ void store_tile(TileRing<kPieces, kParts>& ring, const TileParts<kParts>& tile, int piece,
                                           int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) store_half(ring, tile, piece, half, lane);
}
template <int kPieces, int kParts>
__device__ __forceinline__ TileParts<kParts> load_tile(TileRing<kPieces, kParts>& ring, int piece, int lane) {
    TileParts<kParts> tile;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4 x = piece_of(ring, part, piece + 32 * half + lane);
            unsigned(&to)[4] = tile.at[part][half];
            to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
        }
    return tile;
}

}  // namespace gdn_cuda::conv
