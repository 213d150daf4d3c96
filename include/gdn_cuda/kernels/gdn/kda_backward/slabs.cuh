// Products of gdn/kda_backward_gradients that sum over the values: slabs of rows of S and E, and the same values of dO, Y
// and R, are loaded as the ones before are multiplied. A warp has 32 columns of states.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

template <KdaBackwardConfig kConfig>
struct KdaSlabProducts : MmaLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTiles = 4;                                                   // of 8 columns
    static constexpr int kShares = 4 / kConfig.warps() > 0 ? 4 / kConfig.warps() : 1;  // of dO R^T and Y R^T, by 8 columns
    using Io = Storage<kIo>;
    using Slab = KdaSlab<kConfig.head_k>;
    static constexpr int kRows = Slab::kRows;

    Slab (&slabs)[2];
    const KdaBackwardGradientsArgs& args;

    float by_output[kTiles][4], by_value[kTiles][4], by_key[kTiles][4], kept[kTiles][4];
    float tokens[kShares][4];

    __device__ __forceinline__ KdaSlabProducts(Slab (&slabs)[2], const KdaBackwardGradientsArgs& args)
        : slabs(slabs), args(args) {
        // For each value head anew: addresses that are kept for the next one would spill.
        find_lane(opaque(static_cast<int>(threadIdx.x)));
    }

    // index: of the head and chunk. `outputs`: dO of the chunk's first token.
    __device__ __forceinline__ void load(int slab, i64 index, const Io* outputs, int count) const {
        const int dv = args.call.dv, first = slab * kRows;
        if (first >= dv) return;
        Slab& to = slabs[slab % 2];
        constexpr int kStateVectors = kConfig.head_k / 8, kVectors = kRows / 8;
        const auto copy = [&](unsigned short* at, const void* from, bool exists) {
            cp_async_16_zfill(shared_address(at), from, exists);
        };
        const i64 states = (index * dv + first) * kConfig.head_k;
#pragma unroll 4
        for (int i = thread; i < kRows * kStateVectors; i += kConfig.threads()) {
            const int row = i / kStateVectors, column = i % kStateVectors * 8;
            const bool exists = first + row < dv;
            const i64 at = states + (exists ? row * kConfig.head_k + column : 0);
            copy(&to.states[row][column], static_cast<const Io*>(args.from.states) + at, exists);
            copy(&to.state_gradients[row][column], static_cast<const Io*>(args.from.state_gradients) + at, exists);
        }
#pragma unroll
        for (int i = thread; i < kKdaTokens * kVectors; i += kConfig.threads()) {
            const int token = i / kVectors, row = i % kVectors * 8;
            const bool exists = first + row < dv, in_chunk = exists && token < count;
            const i64 at = static_cast<i64>(token) * dv + first + row, chunk = index * kKdaTokens * dv;
            copy(&to.outputs[token][row], in_chunk ? outputs + token * args.output_gradient.token + first + row : outputs,
                 in_chunk);
            copy(&to.by_error[token][row], static_cast<const Io*>(args.from.by_error) + chunk + (exists ? at : 0), exists);
#pragma unroll
            for (int part = 0; part < 2; ++part)
                copy(&to.errors[part][token][row],
                     static_cast<const Io*>(args.from.errors) + 2 * chunk + (exists ? part * kKdaTokens * dv + at : 0), exists);
        }
    }
    // A left operand of 16 tokens x 16 values.
    __device__ __forceinline__ void load_left(unsigned (&left)[4], const typename Slab::TokenRows& rows, int step) const {
        const VectorOfLane place = VectorOfLane::straight(lane);
        ldmatrix_x4(left, shared_address(&rows[place.row][16 * step + 8 * place.vector]));
    }
    __device__ __forceinline__ void multiply(const Slab& slab) {
        const VectorOfLane straight = VectorOfLane::straight(lane), crossed = VectorOfLane::crossed(lane);
#pragma unroll
        for (int step = 0; step < kRows / 16; ++step) {
            unsigned output[4], value[4], error[2][4];
            load_left(output, slab.outputs, step);
            load_left(value, slab.by_error, step);
            load_left(error[0], slab.errors[0], step);
            load_left(error[1], slab.errors[1], step);
#pragma unroll
            for (int pair = 0; pair < kTiles / 2; ++pair) {
                const int column = 32 * warp + 16 * pair + 8 * straight.vector;
                unsigned s[4], e[4];
                ldmatrix_x4_trans(s, shared_address(&slab.states[16 * step + straight.row][column]));
                ldmatrix_x4_trans(e, shared_address(&slab.state_gradients[16 * step + straight.row][column]));
                const unsigned columns[4] = {s[0], s[2], s[1], s[3]};  // S^T as a left operand
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int tile = 2 * pair + i;
                    mma_m16n8k16<kIo>(by_output[tile], output, s[2 * i], s[2 * i + 1]);
                    mma_m16n8k16<kIo>(by_value[tile], value, s[2 * i], s[2 * i + 1]);
                    mma_m16n8k16<kIo>(by_key[tile], error[0], e[2 * i], e[2 * i + 1]);
                    mma_m16n8k16<kIo>(by_key[tile], error[1], e[2 * i], e[2 * i + 1]);
                    mma_m16n8k16<kIo>(kept[tile], columns, e[2 * i], e[2 * i + 1]);
                }
            }
            if (warp >= 4) continue;
            unsigned right[2][4];
#pragma unroll
            for (int part = 0; part < 2; ++part)
                ldmatrix_x4(right[part], shared_address(&slab.errors[part][crossed.row][16 * step + 8 * crossed.vector]));
#pragma unroll
            for (int share = 0; share < kShares; ++share) {
                const int which = warp + share * kConfig.warps(), tile = which % 2;
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const unsigned b0 = tile == 0 ? right[part][0] : right[part][2],
                                   b1 = tile == 0 ? right[part][1] : right[part][3];
                    if (which < 2)
                        mma_m16n8k16<kIo>(tokens[share], output, b0, b1);
                    else
                        mma_m16n8k16<kIo>(tokens[share], value, b0, b1);
                }
            }
        }
    }
    __device__ __forceinline__ void run(i64 index, const Io* outputs, int count) {
        clear(by_output);
        clear(by_value);
        clear(by_key);
        clear(kept);
        clear(tokens);
        const int slab_count = static_cast<int>(ceil_div(args.call.dv, kRows));
        load(0, index, outputs, count);
        cp_async_fence();
#pragma unroll 1
        for (int slab = 0; slab < slab_count; ++slab) {
            load(slab + 1, index, outputs, count);
            cp_async_fence();
            cp_async_wait<1>();
            __syncthreads();
            multiply(slabs[slab % 2]);
            __syncthreads();  // no warp reads the slab any more
        }
    }
    // By channel, and the diagonal of S^T E in `kept_of`.
    __device__ __forceinline__ void store(KdaStateProducts<kConfig.head_k>& to, float (&kept_of)[kConfig.head_k]) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int channel = kda_column_channel(32 * warp + 8 * tile + 2 * t);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = g + 8 * half;
                const auto put = [&](int which, const float(&sums)[4]) {
                    *reinterpret_cast<float2*>(&to.values[which][token][channel]) = {sums[2 * half], sums[2 * half + 1]};
                };
                put(0, by_output[tile]);
                put(1, by_value[tile]);
                put(2, by_key[tile]);
            }
            const int row = tile % 2 * 2;  // of the tile's columns, among the 16 rows: its own half
            if (t == g / 2)
                kept_of[kda_column_channel(32 * warp + 8 * tile + g)] = g % 2 == 0 ? kept[tile][row] : kept[tile][row + 1];
        }
    }
    // Calls visit(whether of Y, row, column, element) for this lane's elements of dO R^T and Y R^T.
    template <class Visit>
    __device__ __forceinline__ void for_each_token_product(Visit&& visit) const {
        if (warp >= 4) return;
#pragma unroll
        for (int share = 0; share < kShares; ++share) {
            const int which = warp + share * kConfig.warps();
#pragma unroll
            for (int i = 0; i < 4; ++i) visit(which >= 2, g + 8 * (i / 2), which % 2 * 8 + 2 * t + i % 2, tokens[share][i]);
        }
    }

  private:
    template <int kCount>
    __device__ __forceinline__ static void clear(float (&sums)[kCount][4]) {
#pragma unroll
        for (auto& tile : sums)
#pragma unroll
            for (float& element : tile) element = 0.f;
    }
};

}  // namespace gdn_cuda::gdn
