// Sums over pairs of tokens by warp MMAs. A warp has the 16 tokens of a quarter and 32 channels, and adds to what its own
// threads have there, without the decays between a token and its quarter's border, which those multiply by:
//
//     rows           dP (R k), U (R k), from tokens of earlier quarters
//     columns        dP^T (L q) + U^T (L k), from tokens of later ones
//
// L: the decays from a quarter's border to a token, R: those from a token to the border. Sums pass from quarter to quarter,
// with the decays between their borders. The border is a quarter's start for L and its end for R, so that all are at most 1.
// Where all decays are slow (KdaGradientsConfig::kSlow) it is its middle, L and R of some tokens are reciprocals of decays, and
// pairs within a quarter are among the sums.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaQuarterPairs : Lane {
    static constexpr int kTiles = 4, kQuarters = KdaGradientsPlan::kQuarters;  // tiles of 8 channels
    using Sums = float[kTiles][4];
    using Right = unsigned[kTiles / 2][4];

    KdaGradientsPlan& shared;

    __device__ __forceinline__ explicit KdaQuarterPairs(KdaGradientsPlan& shared) : shared(shared) { find_lane(); }

    // residual: only rows, as earlier_key is what rounding has left of the keys.
    __device__ __forceinline__ void add(bool residual) const {
        if (quarter() > 0 || is_slow(0)) add_rows(residual);
        if (!residual && (quarter() < kQuarters - 1 || is_slow(kQuarters - 1))) add_columns();
    }

  private:
    __device__ __forceinline__ int quarter() const { return group; }
    __device__ __forceinline__ int channel(int tile) const { return 32 * warp + 8 * tile + 2 * t; }
    // The pair of channels of accumulators' row g, at a multiple of 8 rows.
    __device__ __forceinline__ float2 own_pair(const SwizzledTile (&rows)[kKdaTiles], int first, int tile) const {
        return unpack<kIo>(
            load_shared_word(row_vector(tile_row(rows[warp / 2].bytes, first + g), warp % 2 * 4 + tile) + 4 * t));
    }
    // The 16 tokens of a quarter.
    __device__ __forceinline__ void load(Right& right, const SwizzledTile (&rows)[kKdaTiles], int of) const {
        const unsigned at = row_vector(tile_row(rows[warp / 2].bytes, kKdaTokens * of + lane % 16), warp % 2 * 4 + lane / 16);
        ldmatrix_x4_trans(right[0], at);
        ldmatrix_x4_trans(right[1], at ^ 2 << 4);
    }
    // sums += x right, or x^T right, of the tokens of two quarters (`of` is not earlier), x in two parts.
    template <bool kTransposed>
    __device__ __forceinline__ void multiply(Sums& sums, const KdaTokenPairs (&x)[2], int of, int other,
                                             const Right& right) const {
        const VectorOfLane place = kTransposed ? VectorOfLane::crossed(lane) : VectorOfLane::straight(lane);
        const unsigned at = row_vector(tile_row(x[0].bytes, KdaTokenPairs::row_of(of) + place.row),
                                       KdaTokenPairs::column_of(of, other) / 8 + place.vector);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            unsigned left[4];
            if constexpr (kTransposed)
                ldmatrix_x4_trans(left, at + part * sizeof(KdaTokenPairs));
            else
                ldmatrix_x4(left, at + part * sizeof(KdaTokenPairs));
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                mma_m16n8k16<kIo>(sums[tile], left, right[tile / 2][tile % 2 * 2], right[tile / 2][tile % 2 * 2 + 1]);
        }
    }
    __device__ __forceinline__ void multiply_columns(Sums& sums, int other) const {
        Right right;
        load(right, shared.operands.query, other);
        multiply<true>(sums, shared.products.queries, other, quarter(), right);
        load(right, shared.operands.key, other);
        multiply<true>(sums, shared.products.keys, other, quarter(), right);
    }

    __device__ __forceinline__ void add_rows(bool residual) const {
        const auto& operands = shared.operands;
        Sums query = {}, key = {};
        const auto multiply_rows = [&](int other) {
            Right right;
            load(right, operands.earlier_key, other);
            multiply<false>(query, shared.products.queries, quarter(), other, right);
            multiply<false>(key, shared.products.keys, quarter(), other, right);
        };
        const auto pass_rows = [&](const Border& from, const Border& to) {
            pass(query, from, to);
            pass(key, from, to);
        };
#pragma unroll 1
        for (int other = 0; other < quarter(); ++other) {
            if (other > 0) pass_rows(after(other - 1), is_slow(other) ? before(other) : whole(other));
            // Sums with the first two quarters cross the third.
            if (quarter() == 3 && other == 2 && !residual)
                store_sums(shared.carried.over_third, after(2), before(3), [&](int half, int tile) {
                    const float2 q = own_pair(operands.query, kKdaTokens * 3 + 8 * half, tile),
                                 k = own_pair(operands.key, kKdaTokens * 3 + 8 * half, tile);
                    const float *const by_query = &query[tile][2 * half], *const by_key = &key[tile][2 * half];
                    return float2{fmaf(q.x, by_query[0], k.x * by_key[0]), fmaf(q.y, by_query[1], k.y * by_key[1])};
                });
            multiply_rows(other);
        }
        if (is_slow(quarter())) {
            if (quarter() > 0) pass_rows(after(quarter() - 1), before(quarter()));
            multiply_rows(quarter());
        } else if (quarter() > 0 && is_slow(quarter() - 1)) {
            pass_rows(after(quarter() - 1), {});
        }
        add(0, query, 1.f);
        add(1, key, -1.f);
    }
    __device__ __forceinline__ void add_columns() const {
        Sums key = {};
#pragma unroll 1
        for (int other = kQuarters - 1; other > quarter(); --other) {
            if (other < kQuarters - 1) pass(key, before(other + 1), is_slow(other) ? after(other) : whole(other));
            if (quarter() == 0 && other == 1) store_column_sums(shared.carried.over_second, before(1), after(0), key);
            multiply_columns(key, other);
        }
        if (quarter() < kQuarters - 1) pass(key, before(quarter() + 1), after(quarter()));
        if (is_slow(quarter())) {
            Sums own = {};
            multiply_columns(own, quarter());
            store_column_sums(shared.products.within[quarter()], {}, {}, own);
#pragma unroll
            for (int i = 0; i < 4 * kTiles; ++i) key[i / 4][i % 4] += own[i / 4][i % 4];
        }
        add(2, key, 1.f);
    }

    // Decays of up to two halves of a quarter, by channel.
    struct Border {
        const float *first = nullptr, *second = nullptr;

        __device__ __forceinline__ float2 at(int channel) const {
            float2 product{1.f, 1.f};
            if (first != nullptr) product = pair_at(first + channel);
            if (second == nullptr) return product;
            const float2 other = pair_at(second + channel);
            return {product.x * other.x, product.y * other.y};
        }
    };
    __device__ __forceinline__ bool is_slow(int of) const { return shared.slow[of][warp] != 0; }
    __device__ __forceinline__ Border whole(int of) const { return {shared.halves[0][of], shared.halves[1][of]}; }
    // From a quarter's start to its border, and from there to its end.
    __device__ __forceinline__ Border before(int of) const { return {is_slow(of) ? shared.halves[0][of] : nullptr}; }
    __device__ __forceinline__ Border after(int of) const { return {is_slow(of) ? shared.halves[1][of] : nullptr}; }
    __device__ __forceinline__ void pass(Sums& sums, const Border& from, const Border& to) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 a = from.at(channel(tile)), b = to.at(channel(tile));
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[tile][i] *= i % 2 == 0 ? a.x * b.x : a.y * b.y;
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
    // Sums of terms(half, tile), pairs of channels, over the quarter's tokens, times decays.
    template <class Terms>
    __device__ __forceinline__ void store_sums(float (&to)[kKdaHeadK], const Border& one, const Border& other,
                                               Terms&& terms) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 first = terms(0, tile), second = terms(1, tile);
            float2 sum{first.x + second.x, first.y + second.y};
#pragma unroll
            for (int step = 4; step < 32; step *= 2) {
                sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
                sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
            }
            if (g > 0) continue;
            const float2 a = one.at(channel(tile)), b = other.at(channel(tile));
            *reinterpret_cast<float2*>(&to[channel(tile)]) = {sum.x * (a.x * b.x), sum.y * (a.y * b.y)};
        }
    }
    __device__ __forceinline__ void store_column_sums(float (&to)[kKdaHeadK], const Border& one, const Border& other,
                                                      const Sums& key) const {
        store_sums(to, one, other, [&](int half, int tile) {
            const float2 k = own_pair(shared.operands.earlier_key, kKdaTokens * quarter() + 8 * half, tile);
            return float2{k.x * key[tile][2 * half], k.y * key[tile][2 * half + 1]};
        });
    }
};

}  // namespace gdn_cuda::gdn
