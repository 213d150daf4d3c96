// A block's work, and what its roles share.
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/hopper/pipeline.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>
#include <gdn_cuda/kernels/ssd/backward_plan.cuh>
#include <gdn_cuda/kernels/ssd/gradients.cuh>

namespace gdn_cuda::ssd {

// Readers and writers: a warpgroup whose rows are the chunk's tokens.
template <SsdBackwardConfig kConfig>
struct TokensRole : Lane {
    using Plan = SsdBackwardPlan<kConfig>;
    using Factors = typename Plan::Factors;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kStages = Plan::kStages, kStateElements = kConfig.states / 2;
    using Operand = unsigned[4][4];  // tokens x 64 channels or tokens, as a left operand

    Plan& shared;
    const SsdBackwardArgs& args;
    const SsdChunkWork& work;

    __device__ __forceinline__ TokensRole(Plan& shared, const SsdBackwardArgs& args)
        : shared(shared), args(args), work(shared.work) {
        find_lane();
    }
    // The thread's first token; the other is eight further on.
    __device__ __forceinline__ int token() const { return 16 * warp + g; }
    __device__ __forceinline__ void load_rows(Operand& x, const SwizzledTile& tile) const {
        const unsigned row = tile_row(tile.bytes, 16 * warp + lane % 16);
#pragma unroll
        for (int step = 0; step < 4; ++step) ldmatrix_x4(x[step], row_vector(row, 2 * step + lane / 16));
    }
    __device__ __forceinline__ void store_operand(SwizzledTile& tile, const Operand& x) const {
        const unsigned row = tile_row(tile.bytes, 16 * warp + lane % 16);
#pragma unroll
        for (int step = 0; step < 4; ++step)
            stmatrix_x4(row_vector(row, 2 * step + lane / 16), x[step][0], x[step][1], x[step][2], x[step][3]);
    }
    // d += left right, tokens x states.
    __device__ __forceinline__ static void start_into_states(float (&d)[kStateElements], const Operand& left,
                                                             const SwizzledTile* right) {
        const auto operand = tile_operand(right, sizeof(SwizzledTile));
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < 4; ++step)
            Product<kIo, kConfig.states, false>::run(d, left[step], operand + mn_major_step(step), true);
        cute::warpgroup_commit_batch();
    }
    // x times a factor for each token, rounded.
    __device__ __forceinline__ static void scale_rows(Operand& scaled, const Operand& x, const float (&factors)[2]) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 v = unpack<kIo>(x[step][i]);
                scaled[step][i] = pack<kIo>(v.x * factors[i % 2], v.y * factors[i % 2]);
            }
    }
    // The sum over channels of x y, for each of the thread's tokens; all lanes of a token have it.
    __device__ __forceinline__ static void row_sums(float (&sums)[2], const Operand& x, const float (&y)[32]) {
        sums[0] = sums[1] = 0.f;
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 v = unpack<kIo>(x[step][i]);
                sums[i % 2] = fmaf(v.x, y[8 * step + 2 * i], fmaf(v.y, y[8 * step + 2 * i + 1], sums[i % 2]));
            }
#pragma unroll
        for (float& sum : sums) {
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        }
    }
    __device__ __forceinline__ void store_row_sums(float (&to)[kChunk], const float (&sums)[2]) const {
        if (t == 0) to[token()] = sums[0], to[token() + 8] = sums[1];
    }
    // A fragment of tokens x columns, of which `columns` exist, to rows of `stride` elements.
    template <int kElements>
    __device__ __forceinline__ void store_rows(const float (&d)[kElements], void* to, i64 stride, int columns) const {
        using Io = Storage<kIo>;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = token() + 8 * half;
            if (row >= work.count) break;
            Io* const at = static_cast<Io*>(to) + row * stride + 2 * t;
#pragma unroll
            for (int n = 0; n < kElements / 4; ++n)
                if (8 * n < columns)
                    *reinterpret_cast<unsigned*>(at + 8 * n) = pack<kIo>(d[4 * n + 2 * half], d[4 * n + 2 * half + 1]);
        }
    }
    __device__ __forceinline__ void store_group_gradient(const float (&d)[kStateElements], void* to) const {
        const i64 stride = static_cast<i64>(args.groups) * args.state_count;
        store_rows(d, static_cast<Storage<kIo>*>(to) + first_token(args, work) * stride + work.group * args.state_count, stride,
                   args.state_count);
    }
    // The warp has read the stage, and its sums are there.
    __device__ __forceinline__ void finish_tile(int stage) const {
        __syncwarp();
        if (lane == 0) {
            barrier(shared.sums_full[stage]).arrive();
            barrier(shared.stage_empty[stage]).arrive();
        }
    }
};

}  // namespace gdn_cuda::ssd
