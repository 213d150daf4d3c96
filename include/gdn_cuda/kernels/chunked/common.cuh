// Shared by the roles of gdn/prefill: thread indices, barriers, and the products two roles compute.
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>
#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/common/wgmma.cuh>
#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/gdn/tokens.cuh>

namespace gdn_cuda::gdn {

// Tokens from a chunk to the next of the block's. kSpaced: the block takes some of a segment's chunks (prefill_ahead.cuh). Read
// from shared memory each time, to save registers.
template <bool kSpaced>
__device__ __forceinline__ int chunk_spacing(const PrefillWork& work) {
    if constexpr (kSpaced) return work.spacing;
    return kChunk;
}
template <bool kSpaced = false>
__device__ __forceinline__ int tokens_in(const PrefillWork& work, int chunk) {
    return min(kChunk, work.length - chunk * chunk_spacing<kSpaced>(work));
}

// Named barriers; CUTLASS adds its reserved ones to these numbers.
using cutlass::arch::NamedBarrier;
enum NamedBarriers : int {
    kBlockBarrier,
    kKeysBarrier,       // scores warpgroup and the inverse warpgroup of the chunk
    kWarpgroupBarrier,  // plus the warpgroup's index
};

struct Lane {
    int group, thread, warp, lane, g, t;  // group in the block; thread and warp in the group; lane, g, t in the warp

    // Recomputed for every chunk: hoisted out of the loop, dozens of addresses and masks would spill.
    __device__ __forceinline__ void find_lane() {
        unsigned i = threadIdx.x;
        asm volatile("" : "+r"(i));
        const unsigned whole_warps = __shfl_sync(0xffffffffu, i / 32, 0);  // warp-uniform for the compiler
        group = static_cast<int>(whole_warps / 4);
        warp = static_cast<int>(whole_warps % 4);
        thread = static_cast<int>(i % kWarpgroup);
        lane = static_cast<int>(i % 32);
        g = static_cast<int>(i % 32 / 4);
        t = static_cast<int>(i % 4);
    }
    __device__ __forceinline__ void warpgroup_sync() const { NamedBarrier::sync(kWarpgroup, kWarpgroupBarrier + group); }

    // This lane's row address for a transposing ldmatrix or stmatrix x4: the tile's first 16 rows, this warp's 16 columns.
    __device__ __forceinline__ unsigned matrix_row(const PrefillTile& tile) const {
        const int row = lane / 16 * 8 + lane % 8, piece = 2 * warp + lane / 8 % 2;
        return shared_address(tile.bytes) + (row * 128 | (piece ^ row % 8) << 4);  // one register for every tile
    }
};

// Optimisation barrier: keeps the compiler from hoisting what depends on x, and holding it in registers.
__device__ __forceinline__ int opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

__device__ __forceinline__ float opaque(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// Stage and mbarrier parity of a chunk; recomputed rather than carried, to save registers.
template <int kStages>
struct ChunkStage {
    int stage;
    unsigned parity;

    __device__ __forceinline__ explicit ChunkStage(int chunk)
        : stage(static_cast<int>(static_cast<unsigned>(chunk) % kStages)), parity(static_cast<unsigned>(chunk) / kStages & 1) {}
};

// 16 elements along k in a K-major operand; 16 tokens along k in an MN-major one; in bytes.
constexpr int kKMajorStep = 32, kMnMajorStep = 16 * 128;
__device__ __forceinline__ constexpr int k_major_step(int step) {  // in descriptor units; tiles are contiguous
    return (step / 4 * static_cast<int>(sizeof(PrefillTile)) + step % 4 * kKMajorStep) / kDescriptorUnit;
}
__device__ __forceinline__ constexpr int mn_major_step(int step) {
    return step * kMnMajorStep / kDescriptorUnit;
}

__device__ __forceinline__ float2 pair_at(const float* numbers) {
    return *reinterpret_cast<const float2*>(numbers);
}

// Zeroes keys and values past the end of a packed sequence, which are the next one's and may be infinite or NaN.
template <PrefillConfig kConfig, int kThreads = kWarpgroup, class Stage>
__device__ __forceinline__ void clear_tokens_from(Stage& stage, int thread, int count) {
    constexpr int kTiles = kConfig.key_tiles() + kConfig.value_groups;
#pragma unroll 1
    for (int i = thread; i < (kChunk - count) * kTiles * 8; i += kThreads) {
        const int row = count + i / (kTiles * 8), piece = i % (kTiles * 8), tile = piece / 8;
        auto& cleared = tile < kConfig.key_tiles() ? stage.key[tile] : stage.value[tile - kConfig.key_tiles()];
        store_shared(row_piece(tile_row(cleared.bytes, row), piece % 8), uint4{});
    }
}

// By one thread: a chunk's outputs of 64 value rows.
__device__ __forceinline__ void start_tile_store(const PrefillArgs& args, const PrefillWork& work, int chunk, int rows,
                                                 const PrefillTile& tile) {
    const int token = static_cast<int>(work.start) + chunk * kChunk;
    const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
    tma_store(args.output, {work.first_row + rows * kValueRows, work.head, token, batch}, tile.bytes);
    cute::tma_store_arrive();
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

__device__ __forceinline__ float log_inverse_norm(float square) {
    return -0.5f * __log2f(square + kNormEpsilon);
}

// A key's exponents. log_norm: log2 of the inverse norm, or 0 if keys are taken as they are.
template <class Factors>
__device__ __forceinline__ void store_key_exponents(Factors& factors, int token, float log_norm) {
    const float gate = factors.gate[token];
    factors.column[token] = gate - log_norm;
    factors.key_row[token] = gate + log_norm + __log2f(fabsf(factors.beta[token]));
}
// A key's scales, which only value warpgroups need.
template <class Factors>
__device__ __forceinline__ void store_key_scales(Factors& factors, int token, float log_norm) {
    const float gate = factors.gate[token], end = factors.gate[kChunk - 1];
    factors.of_key[token] = exp2_fast(gate + log_norm);
    factors.of_update[token] = exp2_fast(end - gate + log_norm);
}
template <class Factors>
__device__ __forceinline__ void store_query_factors(Factors& factors, int token, float log_norm, float scale) {
    const float gate = factors.gate[token];
    factors.query_row[token] = gate + log_norm + __log2f(fabsf(scale));
    factors.of_query[token] = scale * exp2_fast(gate + log_norm);
}

// left (64 x k) right^T (k x 64), both tokens of a chunk.
template <PrefillConfig kConfig>
__device__ __forceinline__ void start_token_products(float (&products)[32], const PrefillTile* left, const PrefillTile* right) {
    const auto left_operand = tile_operand(left, 0), right_operand = tile_operand(right, 0);
    cute::warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < kConfig.head_k / 16; ++step)
        Product<kConfig.io, 64, true>::run(products, left_operand + k_major_step(step), right_operand + k_major_step(step),
                                           step > 0);
    cute::warpgroup_commit_batch();
}

// In place, token products times 2^(row - column), for 16 x 16 blocks up to the diagonal; undefined above it.
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

// P = scale r_i r_j exp(G_i - G_j) q_i.k_j up to the diagonal; kRest: its rounding residual, with zeros written above.
template <DType kIo, bool kRest>
__device__ __forceinline__ void store_scores(const float (&products)[32], const Lane& lane, PrefillTile& scores, float scale) {
    const unsigned to = tile_row(scores.bytes, 16 * lane.warp + lane.lane % 16);
    const int ahead = lane.g - 2 * lane.t;                                              // row minus the first of two columns
    const unsigned diagonal_mask = ahead > 0 ? 0xffffffffu : ahead == 0 ? 0xffffu : 0;  // in 8 x 8 blocks on the diagonal
    const unsigned sign = scale < 0.f ? 0x80008000u : 0;
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
        const bool above = n / 2 > lane.warp, diagonal = n / 2 == lane.warp;
        if (!kRest && above) break;
        const unsigned all = above ? 0 : 0xffffffffu, keep = diagonal ? diagonal_mask : all, right = diagonal ? 0 : all;
        const auto pair = [&](int i) {
            const float x = products[4 * n + 2 * i], next = products[4 * n + 2 * i + 1];
            const unsigned rounded = pack<kIo>(x, next);
            return (kRest ? pack_rest<kIo>(x, next, rounded) : rounded) ^ sign;
        };
        stmatrix_x4(row_piece(to, n + lane.lane / 16), pair(0) & keep, pair(1) & all, pair(2) & right, pair(3) & keep);
    }
}

}  // namespace gdn_cuda::gdn
