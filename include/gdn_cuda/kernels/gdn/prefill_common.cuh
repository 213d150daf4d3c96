// What the roles of gdn/prefill share: where they are, and how they wait for each other.
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>
#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/common/wgmma.cuh>
#include <gdn_cuda/kernels/gdn/prefill_plan.cuh>
#include <gdn_cuda/kernels/gdn/tokens.cuh>

namespace gdn_cuda::gdn {

// Read anew each time: other roles than the reader's are what registers are for.
__device__ __forceinline__ int tokens_in(const PrefillWork& work, int chunk) {
    return min(kChunk, work.length - chunk * kChunk);
}

// Named barriers, as CUTLASS numbers those of its users.
using cutlass::arch::NamedBarrier;
enum NamedBarriers : int {
    kBlockBarrier,
    kKeysBarrier,       // the scores' warpgroup, and the one that inverts the chunk
    kWarpgroupBarrier,  // and one more for each further warpgroup
};

// Where a thread is in its warpgroup.
struct Lane {
    int group, thread, warp, lane, g, t;  // the first among the block's warpgroups, the others in this one

    // Computed anew for every chunk: the compiler would keep dozens of addresses and masks over the loop, and spill them.
    __device__ __forceinline__ void find_place() {
        unsigned i = threadIdx.x;
        asm volatile("" : "+r"(i));
        const unsigned whole_warps = __shfl_sync(0xffffffffu, i / 32, 0);  // known to be the same for a whole warp
        group = static_cast<int>(whole_warps / 4);
        warp = static_cast<int>(whole_warps % 4);
        thread = static_cast<int>(i % kWarpgroup);
        lane = static_cast<int>(i % 32);
        g = static_cast<int>(i % 32 / 4);
        t = static_cast<int>(i % 4);
    }
    __device__ __forceinline__ void warpgroup_sync() const { NamedBarrier::sync(kWarpgroup, kWarpgroupBarrier + group); }

    // Which row of the 8 x 8 matrices of a tile's first 16 rows and this warp's 16 columns this lane names, to be transposed.
    __device__ __forceinline__ unsigned matrix_row(const PrefillTile& tile) const {
        const int row = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
        return shared_address(tile.bytes) + (row * 128 | (piece ^ row % 8) << 4);  // one register for every tile
    }
};

// Keeps the compiler from computing ahead what hangs on a number, and holding it in registers.
__device__ __forceinline__ int not_before_here(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// The place of a chunk among the stages, and how often they have gone round. Not carried along: registers count.
template <int kStages>
struct Turn {
    int stage;
    unsigned parity;

    __device__ __forceinline__ explicit Turn(int chunk)
        : stage(static_cast<int>(static_cast<unsigned>(chunk) % kStages)), parity(static_cast<unsigned>(chunk) / kStages & 1) {}
};

// From 16 of the 64 elements to the next, for operands that lie along k; from 16 of the 64 tokens, for those that do not.
constexpr int kStepAlong = 32, kStepAcross = 16 * 128;
__device__ __forceinline__ constexpr int along(int step) {  // in units of a descriptor, over tiles one after another
    return (step / 4 * static_cast<int>(sizeof(PrefillTile)) + step % 4 * kStepAlong) / kDescriptorUnit;
}
__device__ __forceinline__ constexpr int across(int step) {
    return step * kStepAcross / kDescriptorUnit;
}

__device__ __forceinline__ float2 pair_at(const float* numbers) {
    return *reinterpret_cast<const float2*>(numbers);
}

template <DType kType>
__device__ __forceinline__ void add_squares(float& sum, const uint4& eight) {
    const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (const unsigned pair : pairs) {
        const float2 x = unpack<kType>(pair);
        sum = fmaf(x.x, x.x, fmaf(x.y, x.y, sum));
    }
}

// log2(1 / sqrt(x.x + epsilon)) of a row of swizzled tiles.
template <PrefillConfig kConfig>
__device__ __forceinline__ float log_inverse_norm(const PrefillTile* tiles, int row) {
    float square = 0.f;
#pragma unroll 1
    for (int tile = 0; tile < kConfig.key_tiles(); ++tile) {
        const unsigned from = tile_row(tiles[tile].bytes, row);
#pragma unroll 4
        for (int piece = 0; piece < 8; ++piece) {
            if (kConfig.head_k % kTileElements != 0 && tile * kTileElements + piece * 8 >= kConfig.head_k) break;
            add_squares<kConfig.io>(square, load_shared(row_piece(from, piece)));
        }
    }
    return -0.5f * __log2f(square + kNormEpsilon);
}

// left (64 x k) right^T (k x 64): both chunks of tokens.
template <PrefillConfig kConfig>
__device__ __forceinline__ void start_token_products(float (&products)[32], const PrefillTile* left, const PrefillTile* right) {
    const auto left_operand = tile_operand(left, 0), right_operand = tile_operand(right, 0);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kConfig.head_k / 16; ++step)
        Product<kConfig.io, 64, true>::run(products, left_operand + along(step), right_operand + along(step), step > 0);
    cute::warpgroup_commit_batch();
}

// In place, products of tokens times exp(row - column), for 16 x 16 blocks up to the diagonal; above it, anything.
__device__ __forceinline__ void decay(float (&products)[32], const Lane& lane, const float (&rows)[kChunk],
                                      const float (&columns)[kChunk]) {
    const float row[2] = {rows[16 * lane.warp + lane.g], rows[16 * lane.warp + lane.g + 8]};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
        if (n / 2 > lane.warp) break;
        const float2 column = pair_at(&columns[8 * n + 2 * lane.t]);
#pragma unroll
        for (int i = 0; i < 4; ++i) products[4 * n + i] *= exp2_fast(row[i / 2] - (i % 2 == 0 ? column.x : column.y));
    }
}

// P = scale r_i r_j exp(G_i - G_j) q_i.k_j up to the diagonal; or, for a tile that is not zero above it, what rounding left of
// it.
template <DType kIo, bool kRest>
__device__ __forceinline__ void store_scores(const float (&products)[32], const Lane& lane, PrefillTile& scores, float scale) {
    const unsigned to = tile_row(scores.bytes, 16 * lane.warp + lane.lane % 16);
    const int ahead = lane.g - 2 * lane.t;                                     // of the row, before the first of two columns
    const unsigned near = ahead > 0 ? 0xffffffffu : ahead == 0 ? 0xffffu : 0;  // in 8 x 8 blocks on the diagonal
    const unsigned sign = scale < 0.f ? 0x80008000u : 0;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const bool above = n / 2 > lane.warp, diagonal = n / 2 == lane.warp;
        if (!kRest && above) break;
        const unsigned all = above ? 0 : 0xffffffffu, keep = diagonal ? near : all, right = diagonal ? 0 : all;
        const auto pair = [&](int i) {
            const float x = products[4 * n + 2 * i], next = products[4 * n + 2 * i + 1];
            const unsigned rounded = pack<kIo>(x, next);
            return (kRest ? pack_rest<kIo>(x, next, rounded) : rounded) ^ sign;
        };
        stmatrix_x4(row_piece(to, n + lane.lane / 16), pair(0) & keep, pair(1) & all, pair(2) & right, pair(3) & keep);
    }
}

}  // namespace gdn_cuda::gdn
