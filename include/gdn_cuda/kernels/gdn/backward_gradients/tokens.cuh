// The tokens role: a warpgroup that forms what tokens of a chunk do to each other, for each value head. dP and dA go to shared
// memory as operands of the columns role; M is summed in registers.
#pragma once

#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/backward_gradients/consumer.cuh>

namespace gdn_cuda::gdn {

template <HopperGradientsConfig kConfig>
struct GradientsTokensRole : GradientsConsumer<kConfig> {
    using Base = GradientsConsumer<kConfig>;
    using Base::shared, Base::args, Base::heads, Base::slabs, Base::warp, Base::lane, Base::thread, Base::g, Base::t, Base::row,
        Base::kIo, Base::kKeyTiles;
    using typename Base::Plan, typename Base::Stage, typename Base::Io;
    using Products = float[32];  // 64 x 64, as wgmma's accumulators: element 4 n + i is in row(i / 2), column 8 n + 2 t + i % 2
    using Tokens = typename Plan::Tokens;

    using Base::Base;

    // dO R^T and dV R^T.
    __device__ __forceinline__ void multiply_values(Products& by_output, Products& by_value) {
        for (int slab_of_head = 0; slab_of_head < this->slabs_of_head(); ++slab_of_head, ++slabs) {
            const Stage stage(slabs);
            const auto& slab = shared.slabs[stage.index];
            barrier(shared.slab_full[stage.index]).wait(stage.parity);
            start_tile_product<TileProduct::by_rows, kIo>(by_output, slab.output_gradient, slab.error, slab_of_head > 0);
            start_tile_product<TileProduct::by_rows, kIo>(by_value, slab.value_gradient, slab.error, slab_of_head > 0);
            if (this->two_part()) [[unlikely]] {
                start_tile_product<TileProduct::by_rows, kIo>(by_output, slab.output_gradient, slab.error_residual);
                start_tile_product<TileProduct::by_rows, kIo>(by_value, slab.value_gradient, slab.error_residual);
            }
            wait_for_product(by_output);
            warpgroup_fence_operand(by_value);
            this->arrive(shared.slab_empty[stage.index]);
        }
    }
    // x k^T, over all columns.
    __device__ __forceinline__ void start_products(Products& products, const SwizzledTile* x, const SwizzledTile* keys) const {
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile)
            start_tile_product<TileProduct::by_rows, kIo>(products, x[tile], keys[tile], tile > 0);
    }
    // In place: dP from dO R^T, and dA from dV R^T; zeros above the diagonal and past the end.
    __device__ __forceinline__ void decay(Products& by_output, Products& by_value, const ChunkScalars& scalars,
                                          int count) const {
        const float gate[2] = {scalars.gate[row(0)], scalars.gate[row(1)]},
                    query[2] = {args.call.scale * scalars.query_norm[row(0)], args.call.scale * scalars.query_norm[row(1)]},
                    key[2] = {-scalars.key_norm[row(0)], -scalars.key_norm[row(1)]};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int column = 8 * n + 2 * t;
            const float2 gates = pair_at(&scalars.gate[column]), betas = pair_at(&scalars.beta[column]),
                         norms = pair_at(&scalars.key_norm[column]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = row(i / 2), ahead = at - column - i % 2;
                const bool counts = ahead >= 0 && at < count;  // masked before exp2
                const float decay = counts ? exp2_fast(gate[i / 2] - (i % 2 == 0 ? gates.x : gates.y)) : 0.f;
                const float factor = decay * (i % 2 == 0 ? betas.x * norms.x : betas.y * norms.y);
                float &output = by_output[4 * n + i], &value = by_value[4 * n + i];
                output = counts ? query[i / 2] * factor * output : 0.f;
                value = counts && ahead > 0 ? key[i / 2] * factor * value : 0.f;
            }
        }
    }
    // A tile of products, rounded; kResidual: the rounding residual.
    template <bool kResidual = false>
    __device__ __forceinline__ void store(SwizzledTile& tile, const Products& products) const {
        const unsigned to = tile_row(tile.bytes, 16 * warp + lane % 16);
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            const auto pair = [&](int i) {
                const float x = products[4 * n + 2 * i], next = products[4 * n + 2 * i + 1];
                const unsigned rounded = pack<kIo>(x, next);
                return kResidual ? pack_residual<kIo>(x, next, rounded) : rounded;
            };
            stmatrix_x4(row_vector(to, n + lane / 16), pair(0), pair(1), pair(2), pair(3));
        }
    }
    // The gradients of beta, from the diagonal of dV R^T.
    __device__ __forceinline__ void store_beta_gradients(const Products& by_value, const ChunkScalars& scalars) const {
        auto& to = shared.sums[Stage(heads).index].beta_gradient;
        float diagonal[2] = {};  // where the thread has it; by selections, as its place differs
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const int at = 4 * n + n % 2 * 2;
            const float x = g % 2 == 0 ? by_value[at] : by_value[at + 1];
            diagonal[n % 2] = n / 2 == warp ? x : diagonal[n % 2];
        }
        if (t != g / 2) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) to[row(half)] = diagonal[half] / scalars.beta[row(half)];
    }
    // The value gradients of tokens whose beta is 0, all of which have arrived.
    __device__ __forceinline__ void clear_value_gradients(const ChunkScalars& scalars, const GradientsWork& work,
                                                          int head) const {
        if (thread >= work.count || scalars.beta[thread] != least_beta(kIo)) [[likely]]
            return;
        const Rows& rows = args.call.value_gradient;
        Io* const to = rows_of_chunk<Io>(rows, work, head) + thread * rows.token;
        for (int column = 0; column < args.call.dv; column += 8) *reinterpret_cast<uint4*>(to + column) = {};
    }

    // This warp's part of the sum of M_ij over i >= t > j for each token t: prefix sums of rows, then sums of columns. Nothing
    // is subtracted, as these sums may be far smaller than their terms.
    __device__ __forceinline__ void sum_moments(Products& moments) const {
        constexpr unsigned kAll = 0xffffffffu;
        auto& to = shared.sums[Stage(heads).index].within_chunk[warp];
        float before[2] = {};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n / 2 > warp) break;
            float sums[2] = {};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float x = moments[4 * n + 2 * half], next = moments[4 * n + 2 * half + 1];
                float until = x + next;
#pragma unroll
                for (int step = 1; step < 4; step *= 2) {
                    const float earlier = __shfl_up_sync(kAll, until, step);
                    if (t >= step) until += earlier;
                }
                const float earlier = __shfl_up_sync(kAll, until, 1);
                const float first = before[half] + (t > 0 ? earlier : 0.f), second = first + x;
                before[half] += __shfl_sync(kAll, until, lane | 3);
                const int ahead = row(half) - 8 * n - 2 * t;
                sums[0] += ahead >= 0 ? first : 0.f;
                sums[1] += ahead >= 1 ? second : 0.f;
            }
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
#pragma unroll
                for (float& sum : sums) sum += __shfl_xor_sync(kAll, sum, step);
            if (g == 0) *reinterpret_cast<float2*>(&to[8 * n + 2 * t]) = {sums[0], sums[1]};
        }
    }

    __device__ __forceinline__ void run_head(const GradientsWork& work, const Tokens& tokens, int head) {
        const Stage at(heads);
        const ChunkScalars& scalars = shared.scalars[at.index];
        Products by_output, by_value, moments;
        multiply_values(by_output, by_value);
        const int count = work.count;
        store_beta_gradients(by_value, scalars);
        clear_value_gradients(scalars, work, head);

        start_products(moments, tokens.query, tokens.key);
        decay(by_output, by_value, scalars, count);
        barrier(shared.scores_empty).wait(heads & 1 ^ 1);  // those of the head before
        warpgroup_fence_operand(by_output);                // otherwise pairs are rounded early, and spilled
        store(shared.scores, by_output);
        if (this->two_part()) [[unlikely]] {
            warpgroup_fence_operand(by_output);  // nor kept
            store<true>(shared.scores_residual, by_output);
        }
        wait_for_product(moments);
#pragma unroll
        for (int i = 0; i < 32; ++i) moments[i] *= by_output[i];

        Products& by_keys = by_output;
        start_products(by_keys, tokens.key, tokens.key);
        store(shared.keys, by_value);
        cutlass::arch::fence_view_async_shared();
        wait_for_product(by_keys);  // after the last head, gradients overwrite queries and keys
        barrier(shared.scores_full).arrive();
#pragma unroll
        for (int i = 0; i < 32; ++i) moments[i] = fmaf(by_value[i], by_keys[i], moments[i]);
        sum_moments(moments);
        this->arrive(shared.sums_full[at.index]);
    }

    __device__ __forceinline__ void run() {
        this->for_each_item([&](const GradientsWork& work, const Tokens& tokens) {
            const int first = this->uniform(work.key_head) * args.call.heads_per_key;
#pragma unroll 1
            for (int i = 0; i < args.call.heads_per_key; ++i, ++heads) {
                this->find_lane();
                run_head(work, tokens, first + i);
            }
        });
    }
};

}  // namespace gdn_cuda::gdn
