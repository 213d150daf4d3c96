// Products of gdn/kda_backward_gradients that sum over the values: slabs of 16 rows of S and E, and the same values of dO, Y
// and R, are copied two ahead of the one that is multiplied. A warp has 32 columns of states.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

// What a thread copies of each slab. Its addresses move from slab to slab: computed anew they would be most of the
// instructions.
template <KdaBackwardConfig kConfig>
struct KdaSlabCopies {
    using Slab = KdaSlab<kConfig.head_k>;
    static constexpr int kBytes = 2, kRows = Slab::kRows;
    static constexpr int kStateVectors = kConfig.head_k / 8, kHalfRows = kRows / 2, kTokenVectors = kRows / 8;
    static_assert(kHalfRows * kStateVectors == kConfig.threads());
    // Vectors of a slab's rows of tokens; a warp's are of one tensor.
    static constexpr int kOfTokens = Slab::kTokenRows * kKdaTokens * kTokenVectors,
                         kTokenCopies = (kOfTokens + kConfig.threads() - 1) / kConfig.threads();

    const void* safe;  // an address for vectors that do not exist
    const char *states, *state_gradients, *tokens[kTokenCopies];
    int values, values_of_token[kTokenCopies];  // from the slab's first on
    unsigned states_at, tokens_at;

    // index: of the head and chunk. `outputs`: dO of the chunk's first token.
    __device__ __forceinline__ KdaSlabCopies(const Slab& slab, const KdaBackwardGradientsArgs& args, i64 index,
                                             const void* outputs, int count, unsigned thread)
        : safe(args.from.states), values(args.call.dv) {
        const i64 first = index * values * kConfig.head_k * kBytes + thread * 16;
        states = static_cast<const char*>(args.from.states) + first;
        state_gradients = static_cast<const char*>(args.from.state_gradients) + first;
        states_at = shared_address(&slab.states[thread / kStateVectors][thread % kStateVectors * 8]);
        const int token = thread / kTokenVectors % kKdaTokens, column = thread % kTokenVectors * 8;
        tokens_at = shared_address(&slab.tokens[thread / kTokenVectors / kKdaTokens % Slab::kTokenRows][token][column]);
        const i64 rows = kKdaTokens * values * kBytes;
#pragma unroll
        for (int i = 0; i < kTokenCopies; ++i) {
            const int which = thread / (kTokenVectors * kKdaTokens) + i * kConfig.threads() / (kTokenVectors * kKdaTokens);
            const char* const from = which == 0   ? static_cast<const char*>(outputs)
                                     : which == 1 ? static_cast<const char*>(args.from.by_error) + index * rows
                                                  : static_cast<const char*>(args.from.errors) + (2 * index + which - 2) * rows;
            const i64 step = which == 0 ? args.output_gradient.token : values;
            const bool exists = which == 0 ? token < count : which < Slab::kTokenRows;
            tokens[i] = from + (exists ? token * step + column : 0) * kBytes;
            values_of_token[i] = exists ? values - column : 0;
        }
    }
    // The next slab, `offset` bytes behind the first in shared memory.
    __device__ __forceinline__ void copy(unsigned offset) {
        if (values <= 0) return;
        copy_half(states_at + offset, 0);
        copy_half(states_at + offset + kHalfRows * sizeof(Slab::states[0]), kHalfRows);
#pragma unroll
        for (int i = 0; i < kTokenCopies; ++i) {
            const bool exists = values_of_token[i] > 0;
            constexpr int kStep = kConfig.threads() / kTokenVectors / kKdaTokens * sizeof(Slab::tokens[0]);
            if (kConfig.threads() <= kOfTokens || static_cast<int>(threadIdx.x) < kOfTokens)
                cp_async_16_zfill(tokens_at + offset + i * kStep, exists ? tokens[i] : safe, exists);
            tokens[i] += kRows * kBytes;
            values_of_token[i] -= kRows;
        }
        states += kRows * kConfig.head_k * kBytes;
        state_gradients += kRows * kConfig.head_k * kBytes;
        values -= kRows;
    }

  private:
    // Half of the rows, of either state.
    __device__ __forceinline__ void copy_half(unsigned at, int row) const {
        const bool exists = row < values;
        const int bytes = row * kConfig.head_k * kBytes;
        cp_async_16_zfill(at, exists ? states + bytes : safe, exists);
        cp_async_16_zfill(at + sizeof(Slab::states), exists ? state_gradients + bytes : safe, exists);
    }
};

template <KdaBackwardConfig kConfig>
struct KdaSlabProducts : MmaLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTiles = 4;                              // of 8 columns
    static constexpr int kShares = kConfig.warps() >= 4 ? 1 : 2;  // of dO R^T and Y R^T: both, or one by 8 columns
    using Slab = KdaSlab<kConfig.head_k>;
    using Plan = KdaBackwardGradientsPlan<kConfig.head_k>;
    static constexpr unsigned kRingBytes = Plan::kSlabs * sizeof(Slab);

    Plan& shared;
    float by_output[kTiles][4], by_value[kTiles][4], by_key[kTiles][4], kept[kTiles][4];
    float tokens[kShares][4];

    __device__ __forceinline__ explicit KdaSlabProducts(Plan& shared) : shared(shared) { find_own_lane(); }
    // Anew for each value head, and after the products: what is computed from it and kept would spill.
    __device__ __forceinline__ void find_own_lane() {
        const unsigned own = opaque(threadIdx.x);  // unsigned: fewer instructions for each quotient
        thread = own;
        lane = own % 32;
        g = own % 32 / 4;
        t = own % 4;
        warp = __shfl_sync(0xffffffffu, own / 32, 0);
    }
    __device__ __forceinline__ void run(const KdaBackwardGradientsArgs& args, i64 index, const void* outputs, int count) {
        clear(by_output);
        clear(by_value);
        clear(by_key);
        clear(kept);
        clear(tokens);
        KdaSlabCopies<kConfig> copies(shared.slabs[0], args, index, outputs, count, thread);
        unsigned next = 0, now = 0;
        const auto copy = [&] {
            copies.copy(next);
            cp_async_fence();
            next = next + sizeof(Slab) == kRingBytes ? 0 : next + sizeof(Slab);
        };
        const VectorOfLane straight = VectorOfLane::straight(lane);
        const Slab& slab = shared.slabs[0];
        const unsigned left_at = shared_address(&slab.tokens[0][straight.row][8 * straight.vector]),
                       states_at = shared_address(&slab.states[straight.row][32 * warp + 8 * straight.vector]),
                       // R's two parts, at the warp's 8 tokens
            right_at = shared_address(&slab.tokens[2 + lane / 16][warp % 2 * 8 + lane % 8][lane / 8 % 2 * 8]);
        copy();
        copy();
#pragma unroll 1
        for (int left = args.call.dv; left > 0; left -= Slab::kRows) {
            cp_async_wait<1>();
            __syncthreads();  // the slab has come, and no warp reads the one before it any more
            copy();
            multiply(left_at + now, states_at + now, right_at + now);
            now = now + sizeof(Slab) == kRingBytes ? 0 : now + sizeof(Slab);
        }
        __syncthreads();
        find_own_lane();
    }
    // By channel, and the diagonal of S^T E.
    __device__ __forceinline__ void store() const {
#pragma unroll
        for (int pair = 0; pair < kTiles / 2; ++pair) {
            // Channels of two tiles are adjacent.
            const int channel = kda_column_channel(32 * warp + 16 * pair + 2 * t);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto put = [&](int which, const float(&sums)[kTiles][4]) {
                    const float *const first = &sums[2 * pair][2 * half], *const second = &sums[2 * pair + 1][2 * half];
                    *reinterpret_cast<float4*>(&shared.products.values[which][g + 8 * half][channel]) = {first[0], first[1],
                                                                                                         second[0], second[1]};
                };
                put(0, by_output);
                put(1, by_value);
                put(2, by_key);
            }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int row = tile % 2 * 2;  // of the tile's columns, among the 16 rows: its own half
            if (t == g / 2)
                shared.kept[kda_column_channel(32 * warp + 8 * tile + g)] = g % 2 == 0 ? kept[tile][row] : kept[tile][row + 1];
        }
    }
    // Calls visit(whether of Y, row, column, element) for this lane's elements of dO R^T and Y R^T.
    template <class Visit>
    __device__ __forceinline__ void for_each_token_product(Visit&& visit) const {
        if (warp >= 4) return;
#pragma unroll
        for (int share = 0; share < kShares; ++share) {
            const bool by_error = kShares == 2 ? share == 1 : warp >= 2;
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(by_error, g + 8 * (i / 2), warp % 2 * 8 + 2 * t + i % 2, tokens[share][i]);
        }
    }

  private:
    __device__ __forceinline__ void multiply(unsigned left_at, unsigned states_at, unsigned right_at) {
        constexpr unsigned kTokenBytes = sizeof(Slab::tokens[0]);
        unsigned output[4], value[4], error[2][4];  // left operands of 16 tokens x 16 values
        ldmatrix_x4(output, left_at);
        ldmatrix_x4(value, left_at + kTokenBytes);
        ldmatrix_x4(error[0], left_at + 2 * kTokenBytes);
        ldmatrix_x4(error[1], left_at + 3 * kTokenBytes);
#pragma unroll
        for (int pair = 0; pair < kTiles / 2; ++pair) {
            unsigned s[4], e[4];
            ldmatrix_x4_trans(s, states_at + 32 * pair);
            ldmatrix_x4_trans(e, states_at + 32 * pair + sizeof(Slab::states));
            const unsigned columns[4] = {s[0], s[2], s[1], s[3]};  // S^T as a left operand
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int tile = 2 * pair + i;
                mma_m16n8k16<kIo>(by_output[tile], output, s[2 * i], s[2 * i + 1]);
                mma_m16n8k16<kIo>(by_value[tile], value, s[2 * i], s[2 * i + 1]);
                mma_m16n8k16<kIo>(by_key[tile], error[0], e[2 * i], e[2 * i + 1]);
                mma_m16n8k16<kIo>(kept[tile], columns, e[2 * i], e[2 * i + 1]);
                mma_m16n8k16<kIo>(by_key[tile], error[1], e[2 * i], e[2 * i + 1]);
            }
        }
        if (warp >= 4) return;
        unsigned right[4];
        ldmatrix_x4(right, right_at);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            if constexpr (kShares == 2) {
                mma_m16n8k16<kIo>(tokens[0], output, right[2 * part], right[2 * part + 1]);
                mma_m16n8k16<kIo>(tokens[1], value, right[2 * part], right[2 * part + 1]);
            } else if (warp < 2) {
                mma_m16n8k16<kIo>(tokens[0], output, right[2 * part], right[2 * part + 1]);
            } else {
                mma_m16n8k16<kIo>(tokens[0], value, right[2 * part], right[2 * part + 1]);
            }
        }
    }
    template <int kCount>
    __device__ __forceinline__ static void clear(float (&sums)[kCount][4]) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
};

}  // namespace gdn_cuda::gdn
