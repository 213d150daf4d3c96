// Products of gdn/kda_gradients that sum over the values: each warpgroup has one of dO S, dV S, R E, and [dO R^T, dV R^T].
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>

namespace gdn_cuda::gdn {

enum KdaGradientsBarriers : int { kInputsRead };
static_assert(kInputsRead < kWarpgroupBarrier);

template <DType kIo>
struct KdaValueProducts : Lane {
    using Columns = float[kKdaHeadK / 2];
    using Products = float[kChunk / 2];

    enum Group { kByOutput, kByValue, kByError, kTokens };

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    int value_tiles;

    __device__ __forceinline__ KdaValueProducts(KdaGradientsPlan& shared, const KdaGradientsCall& args)
        : shared(shared), args(args), value_tiles((args.call.dv + kTileElements - 1) / kTileElements) {
        find_lane();
    }

    // All warps have read what was loaded before any stores its products, which others read after a barrier.
    __device__ __forceinline__ void run() {
        if (group == kTokens)
            multiply_tokens();
        else
            multiply_states();
    }
    // The sum of S E over the values, of a channel.
    __device__ __forceinline__ float state_product(int channel) const {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < KdaGradientsPlan::kStateProducts; ++i) sum += shared.state_products[i][channel];
        return sum;
    }

  private:
    __device__ __forceinline__ int row(int half) const { return 16 * warp + g + 8 * half; }
    __device__ __forceinline__ bool two_part() const { return __shfl_sync(0xffffffffu, shared.factors.cancels, 0) != 0; }

    // Two channels of every eighth row: a warp reads whole rows of a tile.
    __device__ __forceinline__ void sum_state_products() const {
        constexpr int kRows = KdaGradientsPlan::kStateProducts, kPairs = kKdaHeadK / 2;
        const int index = opaque(static_cast<int>(threadIdx.x)), first = index / kPairs, pair = index % kPairs;
        const unsigned offset = (first << 7) + ((pair % 32 / 4 ^ first) << 4) + pair % 4 * 4;
        const unsigned states = shared_address(shared.inputs.state[0][pair / 32].bytes) + offset,
                       gradients = shared_address(shared.inputs.state_gradient[0][pair / 32].bytes) + offset;
        static_assert(kRows == 8);  // of the swizzle's pattern
        float2 sum{};
#pragma unroll 4
        for (int value = 0; value < args.call.dv; value += kRows) {
            const unsigned at =
                value / kTileElements * (kKdaTiles * static_cast<unsigned>(sizeof(SwizzledTile))) + value % kTileElements * 128;
            const float2 s = unpack<kIo>(load_shared_word(states + at)), e = unpack<kIo>(load_shared_word(gradients + at));
            sum.x = fmaf(s.x, e.x, sum.x);
            sum.y = fmaf(s.y, e.y, sum.y);
        }
        *reinterpret_cast<float2*>(&shared.state_products[first][2 * pair]) = sum;
    }

    __device__ __forceinline__ static void start(Columns& d, const SwizzledTile& x, const SwizzledTile (&y)[kKdaTiles],
                                                 bool add) {
        const auto left = tile_operand(&x, sizeof(SwizzledTile)), right = tile_operand(&y, sizeof(SwizzledTile));
        cute::warpgroup_arrive();
#pragma unroll
        for (int step = 0; step < kTileElements / 16; ++step)
            Product<kIo, kKdaHeadK, false>::run(d, left + k_major_step(step), right + mn_major_step(step), add || step > 0);
        cute::warpgroup_commit_batch();
    }
    __device__ __forceinline__ void multiply_states() {
        const auto& inputs = shared.inputs;
        const SwizzledTile* const left = group == kByOutput  ? inputs.output_gradient
                                         : group == kByValue ? inputs.value_gradient
                                                             : inputs.error;
        const auto* const right = group == kByError ? inputs.state_gradient : inputs.state;
        const bool has_residual = group == kByError && two_part();
        Columns sums;
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i) {
            start(sums, left[i], right[i], i > 0);
            if (has_residual) [[unlikely]]
                start(sums, inputs.error_residual[i], right[i], true);
        }
        sum_state_products();
        wait_for_product(sums);
        NamedBarrier::sync(KdaGradientsConfig::threads(), kInputsRead);
        find_lane();
        auto& to = shared.products.states[group];
        const int count = shared.place.tokens;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const bool exists = row(half) < count;  // rows past the end are others'
#pragma unroll
            for (int n = 0; n < kKdaHeadK / 8; ++n) {
                const int i = 4 * n + 2 * half;
                *reinterpret_cast<float2*>(&to.values[row(half)][8 * n + 2 * t]) = {exists ? sums[i] : 0.f,
                                                                                    exists ? sums[i + 1] : 0.f};
            }
        }
    }
    __device__ __forceinline__ void multiply_tokens() {
        const auto& inputs = shared.inputs;
        const bool has_residual = two_part();
        Products by_output, by_value;
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i) {
            start_tile_product<TileProduct::by_rows, kIo>(by_output, inputs.output_gradient[i], inputs.error[i], i > 0);
            start_tile_product<TileProduct::by_rows, kIo>(by_value, inputs.value_gradient[i], inputs.error[i], i > 0);
            if (has_residual) [[unlikely]] {
                start_tile_product<TileProduct::by_rows, kIo>(by_output, inputs.output_gradient[i], inputs.error_residual[i]);
                start_tile_product<TileProduct::by_rows, kIo>(by_value, inputs.value_gradient[i], inputs.error_residual[i]);
            }
        }
        sum_state_products();
        wait_for_product(by_output);
        warpgroup_fence_operand(by_value);
        NamedBarrier::sync(KdaGradientsConfig::threads(), kInputsRead);
        find_lane();
        scale(by_output, by_value);
        store_blocks(by_output, by_value);
        store(shared.products.queries, by_output);
        store(shared.products.keys, by_value);
    }
    // In place: dP from dO R^T, and U from dV R^T, whose diagonal is kept; zeros above the diagonal and past the end.
    __device__ __forceinline__ void scale(Products& by_output, Products& by_value) const {
        const float scale = args.call.scale;
        const int count = shared.place.tokens;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 betas = pair_at(&shared.factors.beta[8 * n + 2 * t]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = row(i / 2), ahead = at - (8 * n + 2 * t + i % 2);
                const float beta = i % 2 == 0 ? betas.x : betas.y;
                float &output = by_output[4 * n + i], &value = by_value[4 * n + i];
                if (ahead == 0) shared.own[at] = value;
                output = ahead >= 0 && at < count ? scale * beta * output : 0.f;
                value = ahead > 0 && at < count ? -beta * value : 0.f;
            }
        }
    }
    __device__ __forceinline__ void store_blocks(const Products& by_output, const Products& by_value) const {
        auto& block = shared.blocks[warp];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n / 2 != warp) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = 4 * n + 2 * half;
                *reinterpret_cast<float4*>(&block.at[g + 8 * half][n % 2 * 8 + 2 * t]) = {by_output[i], by_value[i],
                                                                                          by_output[i + 1], by_value[i + 1]};
            }
        }
    }
    __device__ __forceinline__ void store(KdaTokenPairs (&to)[2], const Products& products) const {
        const unsigned first = tile_row(to[0].bytes, KdaTokenPairs::row_of(warp) + lane % 16);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            if (n / 2 > warp) break;
            unsigned rounded[4], residual[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x = products[4 * n + 2 * i], next = products[4 * n + 2 * i + 1];
                const int ahead = row(i % 2) - (8 * n + 8 * (i / 2) + 2 * t);
                if (ahead == 0) x = 0.f;
                if (ahead == 1) next = 0.f;
                rounded[i] = pack<kIo>(x, next);
                residual[i] = pack_residual<kIo>(x, next, rounded[i]);
            }
            const unsigned at = row_vector(first, KdaTokenPairs::column_of(warp, n / 2) / 8 + lane / 16);
            stmatrix_x4(at, rounded[0], rounded[1], rounded[2], rounded[3]);
            stmatrix_x4(at + sizeof(KdaTokenPairs), residual[0], residual[1], residual[2], residual[3]);
        }
    }
};

}  // namespace gdn_cuda::gdn
