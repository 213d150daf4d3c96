// Sums over pairs of tokens by warp MMAs. A warp has the 16 tokens of a quarter and 32 channels, and adds to what its own
// threads have there, times the decays to or from its border, without those between a token and the border, which those
// multiply by:
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
    const bool is_slow;  // whether all of the warp's decays are

    __device__ __forceinline__ KdaQuarterPairs(KdaGradientsPlan& shared, bool is_slow) : shared(shared), is_slow(is_slow) {
        find_lane();
    }

    // residual: only rows, as earlier_key is what rounding has left of the keys.
    __device__ __forceinline__ void add(bool residual) {
        if (quarter() > 0 || is_slow) add_rows(residual);
        if (!residual && (quarter() < kQuarters - 1 || is_slow)) add_columns();
    }

  private:
    __device__ __forceinline__ int quarter() const { return 2 * group + warp / 2; }
    __device__ __forceinline__ int part() const { return warp % 2; }
    __device__ __forceinline__ int channel(int tile) const { return 32 * part() + 8 * tile + 2 * t; }
    // The pair of channels of accumulators' row g, at a multiple of 8 rows.
    __device__ __forceinline__ float2 own_pair(const SwizzledTile& rows, int first, int tile) const {
        return unpack<kIo>(load_shared_word(row_vector(tile_row(rows.bytes, first + g), part() * 4 + tile) + 4 * t));
    }
    // The 16 tokens of a quarter.
    __device__ __forceinline__ void load(Right& right, const SwizzledTile& rows, int of) const {
        const unsigned at = row_vector(tile_row(rows.bytes, kKdaTokens * of + lane % 16), part() * 4 + lane / 16);
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
        load(right, shared.rows.query, other);
        multiply<true>(sums, shared.products.pairs.queries, other, quarter(), right);
        load(right, shared.rows.key, other);
        multiply<true>(sums, shared.products.pairs.keys, other, quarter(), right);
    }

    __device__ __forceinline__ void add_rows(bool residual) {
        const int until = quarter() + is_slow;
        Sums query = {}, key = {};
#pragma unroll 1
        for (int other = 0; other < until; ++other) {
            if (other > 0) pass(shared.after[other - 1], shared.before[other], shared.whole[other], query, key);
            // Sums with the first two quarters cross the third.
            if (quarter() == 3 && other == 2 && !residual)
                store_sums(shared.carried.over_third, shared.after[2], shared.before[3], [&](int half, int tile) {
                    const float2 q = own_pair(shared.rows.query, kKdaTokens * 3 + 8 * half, tile),
                                 k = own_pair(shared.rows.key, kKdaTokens * 3 + 8 * half, tile);
                    const float *const by_query = &query[tile][2 * half], *const by_key = &key[tile][2 * half];
                    return float2{fmaf(q.x, by_query[0], k.x * by_key[0]), fmaf(q.y, by_query[1], k.y * by_key[1])};
                });
            Right right;
            load(right, shared.products.earlier_key, other);
            multiply<false>(query, shared.products.pairs.queries, quarter(), other, right);
            multiply<false>(key, shared.products.pairs.keys, quarter(), other, right);
        }
        if (!is_slow) pass(shared.after[quarter() - 1], nullptr, nullptr, query, key);
        find_lane();  // anew: addresses would be computed early, and registers spill
        const auto* const border = residual ? nullptr : shared.earlier;
        add(0, query, 1.f, border);
        add(1, key, -1.f, border);
    }
    __device__ __forceinline__ void add_columns() {
        Sums key = {};
#pragma unroll 1
        for (int other = kQuarters - 1; other > quarter(); --other) {
            if (other < kQuarters - 1) pass(shared.before[other + 1], shared.after[other], shared.whole[other], key);
            if (quarter() == 0 && other == 1)
                store_column_sums(shared.carried.over_second, shared.before[1], shared.after[0], key);
            multiply_columns(key, other);
        }
        if (quarter() < kQuarters - 1) pass(shared.before[quarter() + 1], shared.after[quarter()], nullptr, key);
        if (is_slow) {
            Sums own = {};
            multiply_columns(own, quarter());
            store_column_sums(shared.within[quarter()], nullptr, nullptr, own);
#pragma unroll
            for (int i = 0; i < 4 * kTiles; ++i) key[i / 4][i % 4] += own[i / 4][i % 4];
        }
        find_lane();
        add(2, key, 1.f, shared.later);
    }

    // The product of decays, where they are given, of the lane's channels.
    __device__ __forceinline__ float2 decays(const float* a, const float* b, const float* c, int tile) const {
        float2 product{1.f, 1.f};
        for (const float* each : {a, b, c})
            if (each != nullptr) {
                const float2 pair = pair_at(each + channel(tile));
                product = {product.x * pair.x, product.y * pair.y};
            }
        return product;
    }
    template <class... All>
    __device__ __forceinline__ void pass(const float* a, const float* b, const float* c, All&... sums) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 decay = decays(a, b, c, tile);
#pragma unroll
            for (int i = 0; i < 4; ++i) ((sums[tile][i] *= i % 2 == 0 ? decay.x : decay.y), ...);
        }
    }
    // In place of a product: it times the decays to or from the border, and sums times a sign.
    __device__ __forceinline__ void add(int which, const Sums& sums, float sign,
                                        const KdaGradientsPlan::Channels* border) const {
        auto* const to = shared.products.states[which].bytes;
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 decay = border == nullptr ? float2{1.f, 1.f} : pair_at(&border[quarter()][channel(tile)]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                auto& pair = *reinterpret_cast<float2*>(
                    to + KdaChannelProducts::at(kKdaTokens * quarter() + g + 8 * half, channel(tile)));
                pair = {fmaf(decay.x, pair.x, sign * sums[tile][2 * half]),
                        fmaf(decay.y, pair.y, sign * sums[tile][2 * half + 1])};
            }
        }
    }
    // Sums of terms(half, tile), pairs of channels, over the quarter's tokens, times decays.
    template <class Terms>
    __device__ __forceinline__ void store_sums(KdaGradientsPlan::Channels& to, const float* one, const float* other,
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
            const float2 decay = decays(one, other, nullptr, tile);
            *reinterpret_cast<float2*>(&to[channel(tile)]) = {sum.x * decay.x, sum.y * decay.y};
        }
    }
    __device__ __forceinline__ void store_column_sums(KdaGradientsPlan::Channels& to, const float* one, const float* other,
                                                      const Sums& key) const {
        store_sums(to, one, other, [&](int half, int tile) {
            const float2 k = own_pair(shared.products.earlier_key, kKdaTokens * quarter() + 8 * half, tile);
            return float2{k.x * key[tile][2 * half], k.y * key[tile][2 * half + 1]};
        });
    }
};

}  // namespace gdn_cuda::gdn
