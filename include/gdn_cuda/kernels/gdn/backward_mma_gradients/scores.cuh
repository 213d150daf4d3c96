// Matrices of tokens x tokens of a value head: dP and dA for the columns, M for the gates, and the gradient of beta.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/loads.cuh>

namespace gdn_cuda::gdn {

template <BackwardGradientsConfig kConfig>
struct ChunkScores : ChunkLoads<kConfig> {
    using Base = ChunkLoads<kConfig>;
    using Base::shared, Base::args, Base::kBlocks, Base::clear, Base::row, Base::column, Base::row_block, Base::column_block,
        Base::is_below, Base::warp, Base::lane, Base::g, Base::t;
    using typename Base::Tile, typename Base::TileSums, typename Base::TilePair;
    static constexpr DType kIo = kConfig.io;

    using Base::Base;

    // Where tokens of a block of columns wait for their products: the last block stays in `tokens` for what follows, so the one
    // before it, whose place the states take, has theirs.
    __device__ __forceinline__ TilePair& place_of_tokens(int block) const {
        return (kBlocks - 1 - block) % 2 == 0 ? shared.tokens : shared.states;
    }

    // On and below the diagonal: dO R^T and dV R^T, q k^T and k k^T. The slab's values are there when their turn comes.
    __device__ __forceinline__ void multiply_values(TileSums& by_output, TileSums& by_value) {
        this->refresh();
#pragma unroll 1
        for (int part = 0; part < this->parts(); ++part) {
            this->add_by_rows(by_output, shared.values.output_gradient, shared.values.error[part]);
            this->add_by_rows(by_value, shared.values.value_gradient, shared.values.error[part]);
        }
    }
    // Loads follow products: the first slab of values is in flight, the next one arrives during products of keys. At the end
    // the last slab and the last block of tokens are in shared memory, and loads of their states are issued.
    __device__ __forceinline__ void multiply(TileSums& by_output, TileSums& by_value, TileSums& by_query, TileSums& by_key) {
        for (TileSums* each : {&by_output, &by_value, &by_query, &by_key}) clear(*each);
        const int slabs = this->slabs();
#pragma unroll
        for (int block = 0; block < 2 && block < kBlocks; ++block) {
            this->load_tokens(place_of_tokens(block), block);
            this->end_group();
        }
        this->template wait_for_groups<kBlocks == 1 ? 1 : 2>();
        multiply_values(by_output, by_value);
        __syncthreads();
        this->refresh();
        if (slabs > 1) this->load_values(shared.head, 1);
        this->end_group();
        multiply_keys<0>(by_query, by_key);
        this->refresh();
        this->load_states(slabs - 1, kBlocks - 1);
        this->end_group();
#pragma unroll 1
        for (int slab = 1; slab < slabs; ++slab) {
            if (slab == 1)
                this->template wait_for_groups<1>();
            else
                this->wait_for_groups();
            multiply_values(by_output, by_value);
            if (slab + 1 == slabs) break;
            __syncthreads();
            this->load_values(shared.head, slab + 1);
            this->end_group();
        }
    }
    template <int kBlock>
    __device__ __forceinline__ void multiply_keys(TileSums& by_query, TileSums& by_key) {
        constexpr bool kValuesBehind = kBlock < 2, kTokensBehind = kBlock + 1 < kBlocks;
        this->template wait_for_groups<kValuesBehind + kTokensBehind>();
        this->refresh();
        TilePair& tokens = place_of_tokens(kBlock);
        this->add_by_rows(by_query, tokens[0], tokens[1]);
        this->add_by_rows(by_key, tokens[1], tokens[1]);
        if constexpr (kBlock + 2 < kBlocks) {
            __syncthreads();
            this->refresh();
            this->load_tokens(tokens, kBlock + 2);
            this->end_group();
        }
        if constexpr (kBlock + 1 < kBlocks) multiply_keys<kBlock + 1>(by_query, by_key);
    }

    // Stores dP in two parts and dA, with the norms of both sides, on and below the diagonal.
    __device__ __forceinline__ void form_scores() {
        TileSums by_output, by_value, by_query, by_key;
        multiply(by_output, by_value, by_query, by_key);
        if (!is_below()) return;
        this->refresh();
        const ChunkScalars& scalars = this->scalars();
        TileSums& moments = by_query;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int at = row(2 * which);
            const float gate = scalars.gate[at], query_norm = args.scale * scalars.query_norm[at],
                        key_norm = -scalars.key_norm[at];
            float diagonal = 0.f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int block = 2 * column_block() + n, ahead = at - column(n, 0);
                const float2 gates = this->pair_of(scalars.gate, block), betas = this->pair_of(scalars.beta, block),
                             norms = this->pair_of(scalars.key_norm, block);
                float score[2], keys[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int e = 2 * which + i;
                    const bool counts = ahead >= i;  // masked before exp2
                    const float decay = counts ? exp2_fast(gate - (i == 0 ? gates.x : gates.y)) : 0.f;
                    const float factor = decay * (i == 0 ? betas.x * norms.x : betas.y * norms.y);
                    score[i] = counts ? query_norm * factor * by_output[n][e] : 0.f;
                    keys[i] = ahead > i ? key_norm * factor * by_value[n][e] : 0.f;
                    moments[n][e] = score[i] * by_query[n][e] + keys[i] * by_key[n][e];
                    if (ahead == i) diagonal = by_value[n][e];
                }
                const unsigned rounded = pack<kIo>(score[0], score[1]);
                store_shared(this->word_at(shared.by_scores[0], n, which), rounded);
                store_shared(this->word_at(shared.by_scores[1], n, which), pack_residual<kIo>(score[0], score[1], rounded));
                store_shared(this->word_at(shared.by_keys, n, which), pack<kIo>(keys[0], keys[1]));
            }
            if (column_block() == row_block() && t == g / 2) shared.beta_gradient[at] = diagonal / scalars.beta[at];
        }
        sum_moments(moments);
    }

    // This warp's part of the sum of M_ij over i >= t > j for each token t: sums of rows up to t, then over rows. Nothing is
    // subtracted: these sums may be far smaller than their terms. Tokens past its columns have all of its row sums before them.
    __device__ __forceinline__ void sum_moments(const TileSums& moments) const {
        constexpr unsigned kAll = 0xffffffffu;
        float* const to = shared.within_chunk[warp];
        float before[2] = {};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            float sums[2] = {};
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const float x = moments[n][2 * which];
                float until = x + moments[n][2 * which + 1];
#pragma unroll
                for (int step = 1; step < 4; step *= 2) {
                    const float earlier = __shfl_up_sync(kAll, until, step);
                    if (t >= step) until += earlier;
                }
                const float earlier = __shfl_up_sync(kAll, until, 1), first = before[which] + (t > 0 ? earlier : 0.f);
                before[which] += __shfl_sync(kAll, until, lane | 3);
                const int ahead = row(2 * which) - column(n, 0);
                sums[0] += ahead >= 0 ? first : 0.f;
                sums[1] += ahead >= 1 ? first + x : 0.f;
            }
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
#pragma unroll
                for (float& sum : sums) sum += __shfl_xor_sync(kAll, sum, step);
            if (g == 0) *reinterpret_cast<float2*>(to + column(n, 0)) = {sums[0], sums[1]};
        }
        if (column_block() == row_block()) return;
        float later[2] = {before[0], before[1]};  // over these rows, from each on
#pragma unroll
        for (float& sum : later)
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                const float after = __shfl_down_sync(kAll, sum, step);
                if (lane + step < 32) sum += after;
            }
        later[0] += __shfl_sync(kAll, later[1], 0);
        const float all = __shfl_sync(kAll, later[0], 0);
        if (t > 0) return;
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int at = row(2 * which);
            to[at] = later[which];
            for (int token = at - 16; token >= 16 * (column_block() + 1); token -= 16) to[token] = all;
        }
    }
    // After sum_moments of all warps.
    __device__ __forceinline__ float sum_within_chunk(int token) const {
        const int own = token / 16;
        float sum = 0.f;
        for (int columns = 0; columns <= own; ++columns)
            for (int rows = own; rows < 4; ++rows) sum += shared.within_chunk[4 * columns + rows][token];
        return sum;
    }
};

}  // namespace gdn_cuda::gdn
