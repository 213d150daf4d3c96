// A warp of the chunked form by warp MMAs that owns 16 rows of a state, and keeps them in registers from chunk to chunk.
// Products are transposed (value rows x tokens), so that the state and what is formed of values are left operands in
// registers. Only one warp accesses its columns of the value tile: it loads them, reads them and overwrites them with the
// output without a barrier with other warps.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/state_rows.cuh>

namespace gdn_cuda::gdn {

template <auto kConfig>
struct MmaRows : MmaStateRows<kConfig, MmaPlan<kConfig>> {
    using Rows = MmaStateRows<kConfig, MmaPlan<kConfig>>;
    using Rows::call, Rows::first_row, Rows::g, Rows::kIo, Rows::kRowBlockBytes, Rows::kStateSteps, Rows::lane, Rows::load_part,
        Rows::pair_of, Rows::refresh, Rows::shared, Rows::stage_pair, Rows::state, Rows::store_staged, Rows::straight_vector,
        Rows::t, Rows::warp, Rows::work;
    using typename Rows::Io, typename Rows::TokenSums;
    static constexpr int kTokenSteps = kChunk / 16, kKeyStages = kConfig.key_stages;

    using Rows::Rows;

    // The tile and the first vector that have the warp's columns of the values.
    __device__ __forceinline__ auto& value_tile() const { return shared.value[warp / 4]; }
    __device__ __forceinline__ int value_vector() const { return warp % 4 * 2; }
    __device__ __forceinline__ int in_time(int chunk) const { return chunk_in_time<kConfig.direction>(work, chunk); }
    __device__ __forceinline__ int tokens_in(int chunk) const { return tokens_of_chunk<kConfig.direction>(work, chunk); }

    __device__ __forceinline__ void store_checkpoint(int chunk) { this->store_checkpoint_after((chunk + 1) * kChunk - 1); }

    // ---- Values and outputs in memory

    // A lane's 16-byte vectors of the warp's columns: every 16th token from token lane / 2 on.
    struct Vectors {
        unsigned shared;
        int token, row;
    };
    __device__ __forceinline__ Vectors vectors() {
        refresh();
        const int vector = lane % 2, token = lane / 2, row = first_row() + 8 * vector;
        return {row_vector(tile_row(value_tile().bytes, token), value_vector() + vector), token, row};
    }
    __device__ __forceinline__ void load_values(const Vectors& mine, int chunk) {
        if (chunk >= work.chunks) return;
        const int count = mine.row < call.values ? tokens_in(chunk) - mine.token : 0;
        const Io* from =
            static_cast<const Io*>(work.value) + (in_time(chunk) * kChunk + mine.token) * call.value.token + mine.row;
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i) {
            const bool exists = 16 * i < count;
            cp_async_16_zfill(mine.shared + i * kRowBlockBytes, exists ? from + 16 * i * call.value.token : work.value, exists);
        }
    }
    // Overwrites values in a tile, before the state update needs the registers.
    __device__ __forceinline__ void stage(const MmaTile& tile, const TokenSums& output) const {
        const unsigned first = first_staged(tile);
#pragma unroll
        for (int n = 0; n < 2 * kTokenSteps; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                stage_pair(first, n, half, pack<kIo>(output[n][2 * half], output[n][2 * half + 1]));
        __syncwarp();
    }
    __device__ __forceinline__ unsigned first_staged(const MmaTile& tile) const {
        return row_vector(tile_row(tile.bytes, g), value_vector()) + 4 * t;
    }
    // A token's value in row g + 8 half of the warp's 16 rows.
    __device__ __forceinline__ Io* value_at(int token, int half) const {
        const unsigned vector = row_vector(row_vector(tile_row(value_tile().bytes, token), value_vector()), half);
        return static_cast<Io*>(__cvta_shared_to_generic(vector)) + g;
    }
    // Stores the chunk's outputs and starts loading the next chunk's values into their place.
    __device__ __forceinline__ void store_output_and_load_values(int chunk) {
        const Vectors mine = vectors();
        const int count = mine.row < call.outputs ? tokens_in(chunk) - mine.token : 0;
        Io* to = static_cast<Io*>(work.output) + (in_time(chunk) * kChunk + mine.token) * call.output.token + mine.row;
        store_staged(mine.shared, to, call.output.token, count, [&] { load_values(mine, chunk + 1); });
    }

    // ---- Products

    static __device__ __forceinline__ void clear(TokenSums& accumulators) {
#pragma unroll
        for (auto& tile : accumulators)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    // Splits 16 tokens of V' into the sum of two left operands.
    static __device__ __forceinline__ void in_two_parts(unsigned (&parts)[2][4], const TokenSums& v, int step) {
        as_left<kIo>(parts[0], v[2 * step], v[2 * step + 1]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            parts[1][i] = pack_residual<kIo>(v[2 * step + i / 2][i % 2 * 2], v[2 * step + i / 2][i % 2 * 2 + 1], parts[0][i]);
    }
    // V' = X^T T^T
    __device__ __forceinline__ void apply_inverse(TokenSums& v, const TokenOperands& x) const {
        clear(v);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int part = 0; part < 2; ++part)
#pragma unroll
                for (int block = step; block < kTokenSteps; ++block) {
                    unsigned right[4];
                    load_part(right, as_two_parts(shared.inverse.block(block, step)).parts[part]);
                    mma_m16n8k16<kIo>(v[2 * block], x[step], right[0], right[1]);
                    mma_m16n8k16<kIo>(v[2 * block + 1], x[step], right[2], right[3]);
                }
    }
    __device__ __forceinline__ void decay_state() {
        const float decay = shared.factors.decay;
#pragma unroll
        for (auto& tile : state)
#pragma unroll
            for (float& element : tile) element *= decay;
    }
    // state += v^T diag(factors) tokens, of keys or queries; v is split into two parts.
    __device__ __forceinline__ void add_tokens(TokenSums& v, const float (&factors)[kChunk], const MmaTile* tokens) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
#pragma unroll
            for (int n = 2 * step; n < 2 * step + 2; ++n) {
                const float2 factor = pair_of(factors, n);
#pragma unroll
                for (int i = 0; i < 4; ++i) v[n][i] *= i % 2 == 0 ? factor.x : factor.y;
            }
            unsigned parts[2][4];
            in_two_parts(parts, v, step);
#pragma unroll
            for (int k = 0; k < kStateSteps; k += 2) {
                unsigned right[2][4];
#pragma unroll
                for (int i = 0; i < 2; ++i) ldmatrix_x4_trans(right[i], straight_vector(tokens, k + i) + step * kRowBlockBytes);
#pragma unroll
                for (int part = 0; part < 2; ++part)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        mma_m16n8k16<kIo>(state[2 * (k + i)], parts[part], right[i][0], right[i][1]);
                        mma_m16n8k16<kIo>(state[2 * (k + i) + 1], parts[part], right[i][2], right[i][3]);
                    }
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
