// Products of gdn/kda_gradients that sum over the values: one warpgroup has dO S, dV S and then R E and S E, the other dO R^T
// and dV R^T.
#pragma once

#include <gdn_cuda/kernels/common/mbarrier.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>

namespace gdn_cuda::gdn {

enum KdaGradientsBarriers : int { kTokensRead, kInputsRead };
static_assert(kInputsRead < kWarpgroupBarrier);

template <DType kIo>
struct KdaValueProducts : Lane {
    using Products = float[kChunk / 2];
    using Block = float[8];           // a warp's, of 16 tokens
    using Parts = unsigned[2][4];     // a block, rounded, and its rounding residual
    static constexpr int kLower = 1;  // a block's pair of values in the second eight rows and the first eight columns

    KdaGradientsPlan& shared;
    const KdaGradientsCall& args;
    int value_tiles;

    __device__ __forceinline__ KdaValueProducts(KdaGradientsPlan& shared, const KdaGradientsCall& args)
        : shared(shared), args(args), value_tiles((args.call.dv + kTileElements - 1) / kTileElements) {
        find_lane();
    }

    // All warps have read what was loaded before any stores its products, which others read after a barrier.
    __device__ __forceinline__ void run() {
        if (group == 0)
            multiply_states();
        else
            multiply_tokens();
    }

  private:
    __device__ __forceinline__ int row(int half) const { return 16 * warp + g + 8 * half; }
    __device__ __forceinline__ bool two_part() const { return __shfl_sync(0xffffffffu, shared.factors.cancels, 0) != 0; }

    // Sums of S E over the values, by channel: what is on the diagonal of S^T E.
    __device__ __forceinline__ void keep_state_products(const Products& sums) const {
        float own[2] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (warp == i) {
                own[0] = g % 2 == 0 ? sums[8 * i] : sums[8 * i + 1];
                own[1] = g % 2 == 0 ? sums[8 * i + 6] : sums[8 * i + 7];
            }
        if (g / 2 != t) return;
        shared.state_product[row(0)] = own[0];
        shared.state_product[row(1)] = own[1];
    }

    __device__ __forceinline__ void multiply_states() {
        barrier(shared.tokens_full).wait(0);
        barrier(shared.states_full).wait(0);
        const auto& inputs = shared.inputs;
        Products by_output, by_value;
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i) {
            start_tile_product<TileProduct::straight, kIo>(by_output, inputs.output_gradient[i], inputs.state[i], i > 0);
            start_tile_product<TileProduct::straight, kIo>(by_value, inputs.value_gradient[i], inputs.state[i], i > 0);
        }
        wait_for_product(by_output);
        warpgroup_fence_operand(by_value);
        NamedBarrier::sync(KdaGradientsConfig::threads(), kTokensRead);
        find_lane();
        store(0, by_output, args.call.scale, args.call.scale);
        store(1, by_value, 1.f, 1.f);
        Products by_error, by_states;
        const bool has_residual = two_part();
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i) {
            start_tile_product<TileProduct::straight, kIo>(by_error, inputs.error[i], inputs.state_gradient[i], i > 0);
            start_tile_product<TileProduct::transposed, kIo>(by_states, inputs.state[i], inputs.state_gradient[i], i > 0);
            if (has_residual) [[unlikely]]
                start_tile_product<TileProduct::straight, kIo>(by_error, shared.error_residual[i], inputs.state_gradient[i]);
        }
        wait_for_product(by_error);
        warpgroup_fence_operand(by_states);
        NamedBarrier::sync(KdaGradientsConfig::threads(), kInputsRead);
        find_lane();
        keep_state_products(by_states);
        store(2, by_error, shared.factors.beta[row(0)], shared.factors.beta[row(1)]);
    }
    // Times the factor of each of the lane's rows.
    __device__ __forceinline__ void store(int which, const Products& sums, float first, float second) const {
        unsigned char* const to = shared.products.states[which].bytes;
        const unsigned at = opaque(KdaChannelProducts::at(row(0), 2 * t));  // not anew for each
#pragma unroll
        for (int i = 0; i < kChunk / 2; i += 2)
            *reinterpret_cast<float2*>(to + (at ^ i / 4 % 4 << 5) + i / 16 * 128 + i % 4 / 2 * 8 * KdaChannelProducts::kRow) =
                i % 4 == 0 ? float2{first * sums[i], first * sums[i + 1]} : float2{second * sums[i], second * sums[i + 1]};
    }
    __device__ __forceinline__ void multiply_tokens() {
        barrier(shared.tokens_full).wait(0);
        const auto& inputs = shared.inputs;
        const bool has_residual = two_part();
        Products by_output, by_value;
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i) {
            start_tile_product<TileProduct::by_rows, kIo>(by_output, inputs.output_gradient[i], inputs.error[i], i > 0);
            start_tile_product<TileProduct::by_rows, kIo>(by_value, inputs.value_gradient[i], inputs.error[i], i > 0);
            if (has_residual) [[unlikely]] {
                start_tile_product<TileProduct::by_rows, kIo>(by_output, inputs.output_gradient[i], shared.error_residual[i]);
                start_tile_product<TileProduct::by_rows, kIo>(by_value, inputs.value_gradient[i], shared.error_residual[i]);
            }
        }
        wait_for_product(by_output);
        warpgroup_fence_operand(by_value);
        NamedBarrier::arrive(KdaGradientsConfig::threads(), kTokensRead);
        // A warp has the rows of a quarter, and so no pair with tokens of later ones.
        Parts output[KdaGradientsPlan::kQuarters], value[KdaGradientsPlan::kQuarters];
#pragma unroll
        for (int block = 0; block < KdaGradientsPlan::kQuarters; ++block) {
            if (block > warp) break;
            auto &by_outputs = reinterpret_cast<Block&>(by_output[8 * block]),
                 &by_values = reinterpret_cast<Block&>(by_value[8 * block]);
            scale(by_outputs, by_values, block);
            if (block == warp) keep_eighths(by_outputs, by_values);
            round(output[block], by_outputs, block < warp);
            round(value[block], by_values, block < warp);
        }
        NamedBarrier::sync(KdaGradientsConfig::threads(), kInputsRead);
        const auto* const pairs = shared.products.pairs.queries[0].bytes;
        const unsigned row = tile_row(pairs, KdaTokenPairs::row_of(warp) + lane % 16);
#pragma unroll
        for (int block = 0; block < KdaGradientsPlan::kQuarters; ++block) {
            if (block > warp) break;
            const int column = KdaTokenPairs::column_of(warp, block) / 8;
            if (block < warp) {
                store(row_vector(row, column + lane / 16), output[block]);
                store(row_vector(row, column + lane / 16) + 2 * sizeof(KdaTokenPairs), value[block]);  // keys are after queries
            } else {
                const int own_row = KdaTokenPairs::row_of(warp) + KdaGradientsConfig::kTokens + lane % 8;
                stmatrix_x4(row_vector(tile_row(pairs, own_row), column) + lane / 8 * sizeof(KdaTokenPairs),
                            output[block][0][kLower], output[block][1][kLower], value[block][0][kLower],
                            value[block][1][kLower]);
            }
        }
    }
    // In place: dP from dO R^T, and U from dV R^T; zeros past the end.
    __device__ __forceinline__ void scale(Block& output, Block& value, int block) const {
        const float4 betas[2] = {beta_pair(block, 0), beta_pair(block, 1)};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (block == warp && i % 4 < 2 && i < 4) keep_own(value[i], i);
            if (block == warp && i >= 6) keep_own(value[i], i);
            output[i] *= i % 2 == 0 ? betas[i / 4].x : betas[i / 4].y;
            value[i] *= i % 2 == 0 ? betas[i / 4].z : betas[i / 4].w;
        }
        if (shared.place.tokens < kChunk) [[unlikely]]
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (row(i % 4 / 2) >= shared.place.tokens) output[i] = value[i] = 0.f;
    }
    // dV R of a token, which is on the diagonal.
    __device__ __forceinline__ void keep_own(float value, int i) const {
        if (g == 2 * t + i % 2) shared.own[row(i / 4)] = value;
    }
    // Those of a quarter's two eighths with themselves, with zeros above the diagonal.
    __device__ __forceinline__ void keep_eighths(const Block& output, const Block& value) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = 6 * half, column = 2 * t;
            float4 four{output[i], value[i], output[i + 1], value[i + 1]};
            if (g < column) four.x = 0.f;
            if (g <= column) four.y = four.z = 0.f;
            if (g <= column + 1) four.w = 0.f;
            *reinterpret_cast<float4*>(&shared.blocks[2 * warp + half].at[g][column]) = four;
        }
    }
    // The factors of dP and of U for the lane's two columns.
    __device__ __forceinline__ float4 beta_pair(int block, int half) const {
        const float2 beta = pair_at(&shared.factors.beta[16 * block + 8 * half + 2 * t]);
        return {args.call.scale * beta.x, args.call.scale * beta.y, -beta.x, -beta.y};
    }
    // All, or only pairs of a later eighth's tokens with an earlier one's.
    __device__ __forceinline__ static void round(Parts& parts, const Block& x, bool all) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (!all && i != kLower) continue;
            parts[0][i] = pack<kIo>(x[2 * i], x[2 * i + 1]);
            parts[1][i] = pack_residual<kIo>(x[2 * i], x[2 * i + 1], parts[0][i]);
        }
    }
    __device__ __forceinline__ static void store(unsigned at, const Parts& parts) {
#pragma unroll
        for (int part = 0; part < 2; ++part)
            stmatrix_x4(at + part * sizeof(KdaTokenPairs), parts[part][0], parts[part][1], parts[part][2], parts[part][3]);
    }
};

}  // namespace gdn_cuda::gdn
