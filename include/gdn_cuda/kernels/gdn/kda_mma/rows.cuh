// What a chunk of gdn/kda_mma does to a warp's rows of the state, and its outputs.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_mma/by_token.cuh>
#include <gdn_cuda/kernels/gdn/kda_mma/lane.cuh>

namespace gdn_cuda::gdn {

template <KdaMmaConfig kConfig>
struct KdaMmaRows : MmaStateRows<kConfig, KdaMmaPlan<kConfig>> {
    using Rows = MmaStateRows<kConfig, KdaMmaPlan<kConfig>>;
    using Rows::call, Rows::first_row, Rows::g, Rows::kIo, Rows::kStateSteps, Rows::lane, Rows::refresh, Rows::shared,
        Rows::state, Rows::t, Rows::warp, Rows::work, Rows::block_vector;
    using typename Rows::Io;
    using Sums = float[kKdaMmaTokens / 8][4];  // accumulators of 16 rows x 16 tokens
    using Left = unsigned[4];
    using Right = unsigned[2][2][2];  // two parts; of rows 0 to 7 and 8 to 15, columns 0 to 7 and 8 to 15

    Left x[2];    // X of a chunk, in two parts
    Sums output;  // and its output

    using Rows::Rows;

    __device__ __forceinline__ int tokens_in(int chunk) const {
        return min(kKdaMmaTokens, work.length - chunk * kKdaMmaTokens);
    }
    __device__ __forceinline__ unsigned values() const { return shared_address(shared.values[warp].bytes); }

    // ---- Values and outputs in memory: a 16-byte vector of a token by a lane

    __device__ __forceinline__ void load_values(int chunk) {
        refresh();
        if (tokens_in(chunk) <= 0) return;
        const int token = lane / 2, row = first_row() + lane % 2 * 8;
        const bool exists = row < call.values && token < tokens_in(chunk);
        const Io* from = static_cast<const Io*>(work.value) + (chunk * kKdaMmaTokens + token) * call.value.token + row;
        cp_async_16_zfill(values() + block_vector(token, lane % 2), exists ? from : work.value, exists);
    }
    __device__ __forceinline__ void store_output(int chunk) {
        refresh();
        const int token = lane / 2, row = first_row() + lane % 2 * 8;
        Raw<16> eight;
        eight.bits = load_shared(values() + block_vector(token, lane % 2));
        if (row < call.outputs && token < tokens_in(chunk))
            eight.store_global(static_cast<Io*>(work.output) + (chunk * kKdaMmaTokens + token) * call.output.token + row);
    }

    // ---- Products

    // X = v - r K_in S^T and the output scale r Q_in S^T, once the values have arrived.
    __device__ __forceinline__ void apply_state() {
        refresh();
        Sums predicted = {};
        clear(output);
        const KdaTileRow keys(shared.key_in, VectorOfLane::crossed(lane)),
            queries(shared.query_in, VectorOfLane::crossed(lane));
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            Left left;
            unsigned right[4];
            as_left<kIo>(left, state[2 * step], state[2 * step + 1]);
            ldmatrix_x4(right, keys.at(step));
            mma_m16n8k16<kIo>(predicted[0], left, right[0], right[1]);
            mma_m16n8k16<kIo>(predicted[1], left, right[2], right[3]);
            ldmatrix_x4(right, queries.at(step));
            mma_m16n8k16<kIo>(output[0], left, right[0], right[1]);
            mma_m16n8k16<kIo>(output[1], left, right[2], right[3]);
        }
        cp_async_wait<0>();
        __syncwarp();  // every lane's values have arrived
        ldmatrix_x4_trans(x[0], values() + block_vector(VectorOfLane::crossed(lane)));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 norm = pair_of(shared.key_norm, i / 2), v = unpack<kIo>(x[0][i]);
            const float low = v.x - norm.x * predicted[i / 2][i % 2 * 2], high = v.y - norm.y * predicted[i / 2][i % 2 * 2 + 1];
            x[0][i] = pack<kIo>(low, high);
            x[1][i] = pack_residual<kIo>(low, high, x[0][i]);
        }
        scale_tokens(output, shared.query_norm);
    }
    // V' = T X, the outputs, and the state after the chunk. is_last: of the sequence, and the state is not stored.
    __device__ __forceinline__ void advance(int chunk, bool is_last) {
        refresh();
        auto& inverse = shared.warp_memory[warp].inverse;
        invert_block(shared.scores, inverse, lane);
        Sums v = {};
        Right right;
        load_right(right, [&](int row, int column) {
            const float2 x = pair_at(&inverse.at[row][column]), beta = pair_at(&shared.beta[column]);
            return float2{x.x * beta.x, x.y * beta.y};
        });
#pragma unroll
        for (int i = 0; i < 3; ++i)  // without the product of the two rounding residuals
#pragma unroll
            for (int n = 0; n < 2; ++n) mma_m16n8k16<kIo>(v[n], x[i / 2], right[i % 2][n][0], right[i % 2][n][1]);
        unsigned parts[2][4];
        in_two_parts(parts, v);
        load_right(right, [&](int row, int column) {
            return float2{row >= column ? shared.scores.at[column][row] : 0.f,
                          row > column ? shared.scores.at[column + 1][row] : 0.f};
        });
#pragma unroll
        for (int i = 0; i < 3; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) mma_m16n8k16<kIo>(output[n], parts[i / 2], right[i % 2][n][0], right[i % 2][n][1]);
        const auto resets = *reinterpret_cast<const uint2*>(shared.resets);
        if (resets.x | resets.y)
            if (!is_finite(v)) return advance_by_token(*this, shared.warp_memory[warp].rows, chunk);
        stage_output();
        if (is_last) return;
        refresh();
        scale_tokens(v, shared.key_norm);
        in_two_parts(parts, v);
        decay_state();
        constexpr unsigned kResidual = sizeof(shared.key_out);  // key_out_residual follows
        const KdaTileRow keys(shared.key_out, VectorOfLane::straight(lane));
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            unsigned key[2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part) ldmatrix_x4_trans(key[part], keys.at(step) + part * kResidual);
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                mma_m16n8k16<kIo>(state[2 * step], parts[i / 2], key[i % 2][0], key[i % 2][1]);
                mma_m16n8k16<kIo>(state[2 * step + 1], parts[i / 2], key[i % 2][2], key[i % 2][3]);
            }
        }
    }

  private:
    __device__ __forceinline__ static void clear(Sums& sums) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
    // The factors of tokens 8 n + 2 t and + 1.
    __device__ __forceinline__ float2 pair_of(const float (&factors)[kKdaMmaTokens], int n) const {
        return pair_at(&factors[8 * n + 2 * t]);
    }
    __device__ __forceinline__ void scale_tokens(Sums& sums, const float (&factors)[kKdaMmaTokens]) const {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const float2 factor = pair_of(factors, n);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[n][i] *= i % 2 == 0 ? factor.x : factor.y;
        }
    }
    __device__ __forceinline__ static void in_two_parts(unsigned (&parts)[2][4], const Sums& v) {
        as_left<kIo>(parts[0], v[0], v[1]);
#pragma unroll
        for (int i = 0; i < 4; ++i) parts[1][i] = pack_residual<kIo>(v[i / 2][i % 2 * 2], v[i / 2][i % 2 * 2 + 1], parts[0][i]);
    }
    // A matrix (tokens x tokens) whose columns are summed over, in two parts. pair_of_row(row, column): columns `column` and
    // column + 1.
    template <class Pair>
    __device__ __forceinline__ void load_right(Right& right, Pair&& pair_of_row) const {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float2 pair = pair_of_row(8 * n + g, 8 * half + 2 * t);
                right[0][n][half] = pack<kIo>(pair.x, pair.y);
                right[1][n][half] = pack_residual<kIo>(pair.x, pair.y, right[0][n][half]);
            }
    }
    __device__ __forceinline__ void decay_state() {
#pragma unroll
        for (int n = 0; n < 2 * kStateSteps; ++n) {
            const float2 decay = pair_at(&shared.decay[8 * n + 2 * t]);
#pragma unroll
            for (int i = 0; i < 4; ++i) state[n][i] *= i % 2 == 0 ? decay.x : decay.y;
        }
    }
    // Over the values.
    __device__ __forceinline__ void stage_output() const {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(values() + block_vector(8 * n + g, half) + 4 * t,
                             transposed(pack<kIo>(output[n][2 * half], output[n][2 * half + 1])));
        __syncwarp();
    }

    // ---- A chunk whose reset must drop values that are not finite

    __device__ __forceinline__ bool is_finite(const Sums& v) const {
        float zero = 0.f;
        const auto add = [&](const auto& tiles) {
#pragma unroll
            for (const auto& tile : tiles)
#pragma unroll
                for (const float element : tile) zero = fmaf(element, 0.f, zero);
        };
        add(v);
        add(output);
        add(state);
        return __all_sync(0xffffffffu, zero == 0.f);
    }
};

}  // namespace gdn_cuda::gdn
