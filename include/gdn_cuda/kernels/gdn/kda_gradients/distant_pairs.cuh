// Sums over pairs of tokens of different quarters of the chunk: between the halves of 64 tokens (far), and those of 32 (near).
// A warp has the 16 tokens of a quarter and 32 channels, and adds to what its own threads have there, without the decays
// between a token and its quarter's border, which those multiply by.
//
//     rows, by tokens of an upper half        dP (B k), U (B k)
//     columns, by tokens of a lower half      dP^T (F q) + U^T (F k)
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaDistantPairs : Lane {
    static constexpr int kTiles = 4;  // of 8 channels
    static constexpr int kLast = kChunk - kKdaTokens;
    using Sums = float[kTiles][4];

    KdaGradientsPlan& shared;

    __device__ __forceinline__ explicit KdaDistantPairs(KdaGradientsPlan& shared) : shared(shared) { find_lane(); }

    __device__ __forceinline__ void add() const {
        if (group > 0) add_rows();
        if (group < 3) add_columns();
    }

  private:
    __device__ __forceinline__ int quarter() const { return group; }
    __device__ __forceinline__ int channel(int tile) const { return 32 * warp + 8 * tile + 2 * t; }
    // The pair of channels of accumulators' row g, at a multiple of 8 rows.
    __device__ __forceinline__ float2 own_pair(const SwizzledTile (&rows)[kKdaTiles], int first, int tile) const {
        return unpack<kIo>(
            load_shared_word(row_vector(tile_row(rows[warp / 2].bytes, first + g), warp % 2 * 4 + tile) + 4 * t));
    }

    // sums += x (16 rows of a tile from `row` on, or, transposed, 16 columns from `row` on, x 16 from `column` on) right, x in
    // two parts.
    template <bool kTransposed>
    __device__ __forceinline__ void multiply(Sums& sums, const KdaDistantTile (&x)[2], int row, int column,
                                             const unsigned (&right)[kTiles / 2][4]) const {
        const VectorOfLane place = kTransposed ? VectorOfLane::crossed(lane) : VectorOfLane::straight(lane);
        const unsigned at = kTransposed
                                ? row_vector(tile_row(x[0].bytes, column - kKdaTokens + place.row), row / 8 + place.vector)
                                : row_vector(tile_row(x[0].bytes, row - kKdaTokens + place.row), column / 8 + place.vector);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            unsigned left[4];
            if constexpr (kTransposed)
                ldmatrix_x4_trans(left, at + part * sizeof(KdaDistantTile));
            else
                ldmatrix_x4(left, at + part * sizeof(KdaDistantTile));
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                mma_m16n8k16<kIo>(sums[tile], left, right[tile / 2][tile % 2 * 2], right[tile / 2][tile % 2 * 2 + 1]);
        }
    }
    __device__ __forceinline__ void load(unsigned (&right)[kTiles / 2][4], const SwizzledTile (&rows)[kKdaTiles],
                                         int first) const {
        const unsigned at = row_vector(tile_row(rows[warp / 2].bytes, first + lane % 16), warp % 2 * 4 + lane / 16);
        ldmatrix_x4_trans(right[0], at);
        ldmatrix_x4_trans(right[1], at ^ 2 << 4);
    }

    __device__ __forceinline__ void add_rows() const {
        const auto& products = shared.products;
        const auto& operands = shared.operands;
        Sums query = {}, key = {};
        unsigned right[kTiles / 2][4];
        if (quarter() >= 2) {
#pragma unroll
            for (int first = 0; first < kChunk / 2; first += kKdaTokens) {
                load(right, operands.far_key, first);
                multiply<false>(query, products.queries, kKdaTokens * quarter(), first, right);
                multiply<false>(key, products.keys, kKdaTokens * quarter(), first, right);
            }
        }
        if (quarter() == 3) {
            pass_on(shared.carried.far_upper, [&](int half, int tile) {
                const float2 q = own_pair(operands.query, kLast + 8 * half, tile),
                             k = own_pair(operands.far_key, kLast + 8 * half, tile);
                const float *const by_query = &query[tile][2 * half], *const by_key = &key[tile][2 * half];
                return float2{fmaf(q.x, by_query[0], k.x * by_key[0]), fmaf(q.y, by_query[1], k.y * by_key[1])};
            });
            decay(query, shared.totals[2]);
            decay(key, shared.totals[2]);
        }
        if (quarter() % 2 == 1) {
            load(right, operands.near_key, kKdaTokens * (quarter() - 1));
            multiply<false>(query, products.queries, kKdaTokens * quarter(), kKdaTokens * (quarter() - 1), right);
            multiply<false>(key, products.keys, kKdaTokens * quarter(), kKdaTokens * (quarter() - 1), right);
        }
        add(0, query, 1.f);
        add(1, key, -1.f);
    }
    __device__ __forceinline__ void add_columns() const {
        const auto& products = shared.products;
        const auto& operands = shared.operands;
        Sums key = {};
        unsigned right[kTiles / 2][4];
        if (quarter() < 2) {
#pragma unroll
            for (int first = 0; first < kChunk / 2; first += kKdaTokens) {
                load(right, operands.query, kChunk / 2 + first);
                multiply<true>(key, products.queries, kKdaTokens * quarter(), kChunk / 2 + first, right);
                load(right, operands.far_key, kChunk / 2 + first);
                multiply<true>(key, products.keys, kKdaTokens * quarter(), kChunk / 2 + first, right);
            }
        }
        if (quarter() == 0) {
            pass_on(shared.carried.far_lower, [&](int half, int tile) {
                const float2 k = own_pair(operands.far_key, 8 * half, tile);
                return float2{k.x * key[tile][2 * half], k.y * key[tile][2 * half + 1]};
            });
            decay(key, shared.totals[1]);
        }
        if (quarter() % 2 == 0) {
            const int other = kKdaTokens * (quarter() + 1);
            load(right, operands.query, quarter() == 0 ? kKdaTokens : 0);
            multiply<true>(key, products.queries, kKdaTokens * quarter(), other, right);
            load(right, operands.near_key, other);
            multiply<true>(key, products.keys, kKdaTokens * quarter(), other, right);
        }
        add(2, key, 1.f);
    }
    __device__ __forceinline__ void decay(Sums& sums, const float (&decays)[kKdaHeadK]) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 factor = pair_at(&decays[channel(tile)]);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[tile][i] *= i % 2 == 0 ? factor.x : factor.y;
        }
    }
    __device__ __forceinline__ void add(int which, const Sums& sums, float sign) const {
        auto& to = shared.products.states[which];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                auto& pair = *reinterpret_cast<float2*>(&to.values[kKdaTokens * quarter() + g + 8 * half][channel(tile)]);
                pair = {fmaf(sign, sums[tile][2 * half], pair.x), fmaf(sign, sums[tile][2 * half + 1], pair.y)};
            }
    }
    // Sums of terms(half, tile), pairs of channels, over the quarter's tokens.
    template <class Terms>
    __device__ __forceinline__ void pass_on(float (&to)[kKdaHeadK], Terms&& terms) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 first = terms(0, tile), second = terms(1, tile);
            float2 sum{first.x + second.x, first.y + second.y};
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
                sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
            }
            if (g == 0) *reinterpret_cast<float2*>(&to[channel(tile)]) = sum;
        }
    }
};

}  // namespace gdn_cuda::gdn
