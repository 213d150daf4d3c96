// Sums over pairs of tokens of different eighths, by warp MMAs. A warp has the 16 tokens of a quarter and 32 channels. It
// starts from what those have from the states:
//
//     rows           scale dO S + dP (R k), -dV S + U (R k), from tokens of earlier eighths
//     columns        beta R E + dP^T (L q) + U^T (L k), from tokens of later ones
//
// L: the decays from an eighth's start to a token, R: those from a token to its eighth's end. Sums pass from eighth to eighth,
// with the eighth's decays. The tokens' threads multiply them by L and R. All decays are at most 1.
#pragma once

#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

template <DType kIo>
struct KdaEighthPairs : Lane {
    static constexpr int kTiles = 4, kQuarters = KdaGradientsPlan::kQuarters,  // tiles of 8 channels
        kEighths = KdaGradientsPlan::kEighths, kTokens = KdaGradientsConfig::kTokens;
    using Sums = float[kTiles][4];          // a tile's: two channels of a token of the first eighth, and of the second
    using Right = unsigned[kTiles / 2][4];  // an eighth's tokens twice, as left operands have them

    KdaGradientsPlan& shared;
    unsigned words, floats;  // bytes from tiles, and from products, to the lane's first pair of channels of its first token
    unsigned vectors;        // bytes from tiles to the lane's vector of right operands, in the first eighth

    __device__ __forceinline__ explicit KdaEighthPairs(KdaGradientsPlan& shared) : shared(shared) { find_place(); }

    __device__ __forceinline__ void add() {
        add_rows<false>();
        add_columns();
    }
    // Only rows, as earlier_key is what rounding has left of the keys.
    __device__ __forceinline__ void add_residuals() { add_rows<true>(); }

  private:
    __device__ __forceinline__ void find_place() {
        find_lane();
        const unsigned row = 2 * kTokens * quarter() + g;
        words = opaque(row * 128 + (((part() * 4) ^ g) << 4) + 4 * t);
        floats = opaque(KdaChannelProducts::at(row, channel(0)));
        vectors = opaque(static_cast<unsigned>(lane % 8 * 128 + ((lane % 8 ^ (4 * part() + lane / 16)) << 4)));
    }
    __device__ __forceinline__ int quarter() const { return 2 * group + warp / 2; }
    __device__ __forceinline__ int part() const { return warp % 2; }
    __device__ __forceinline__ int channel(int tile) const { return 32 * part() + 8 * tile + 2 * t; }
    // Pairs of channels of the lane's token in one of the quarter's eighths.
    __device__ __forceinline__ float2 own_pair(const SwizzledTile& rows, int half, int tile) const {
        return unpack<kIo>(load_shared_word(shared_address(rows.bytes) + (words ^ tile << 4) + half * kTokens * 128));
    }
    __device__ __forceinline__ float2& product(int which, int half, int tile) const {
        return *reinterpret_cast<float2*>(shared.products.states[which].bytes + (floats ^ tile << 5) +
                                          half * kTokens * KdaChannelProducts::kRow);
    }
    __device__ __forceinline__ void load(Right& right, const SwizzledTile& rows, int eighth) const {
        const unsigned at = shared_address(rows.bytes) + vectors + eighth * kTokens * 128;
        ldmatrix_x4_trans(right[0], at);
        ldmatrix_x4_trans(right[1], at ^ 2 << 4);
    }
    // sums += left right. Left operands have an eighth's tokens twice: of x rounded, and of its residual.
    __device__ __forceinline__ void multiply(Sums& sums, const unsigned (&left)[4], const Right& right) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile)
            mma_m16n8k16<kIo>(sums[tile], left, right[tile / 2][tile % 2 * 2], right[tile / 2][tile % 2 * 2 + 1]);
    }
    // The lane's address of a left operand in the first of x: of the quarter's rows against an earlier eighth, where the vector
    // is its index,
    __device__ __forceinline__ unsigned rows_of(const KdaTokenPairs (&x)[2]) const {
        static_assert(KdaTokenPairs::column_of(1, 1) == 2 * kTokens);
        return tile_row(x[0].bytes, KdaTokenPairs::row_of(quarter()) + lane % 16) +
               lane / 16 * static_cast<int>(sizeof(KdaTokenPairs));
    }
    // and of its columns against the first later eighth that has rows; others follow.
    static constexpr int kFirstRows = 2;
    __device__ __forceinline__ unsigned columns_of(const KdaTokenPairs (&x)[2]) const {
        static_assert(KdaTokenPairs::row_of(kFirstRows / 2) == 0);
        return row_vector(tile_row(x[0].bytes, lane % 8), 2 * quarter() + lane / 8 % 2) +
               lane / 16 * static_cast<int>(sizeof(KdaTokenPairs));
    }
    static constexpr int kKeys = 2 * sizeof(KdaTokenPairs);  // U is after dP
    // Pairs of the quarter's own eighths: dP rounded, its residual, and the same of U.
    __device__ __forceinline__ unsigned own_pairs() const {
        return row_vector(
                   tile_row(shared.products.pairs.queries[0].bytes, KdaTokenPairs::row_of(quarter()) + kTokens + lane % 8),
                   KdaTokenPairs::column_of(quarter(), quarter()) / 8) +
               lane / 8 * static_cast<int>(sizeof(KdaTokenPairs));
    }

    template <bool kResidual>
    __device__ __forceinline__ void add_rows() {
        Sums query = {}, key = {};
        if constexpr (!kResidual)
#pragma unroll
            for (int i = 0; i < 2 * kTiles; ++i) {
                const float2 by_query = product(0, i % 2, i / 2), by_key = product(1, i % 2, i / 2);
                set(query, i % 2, i / 2, by_query);
                set(key, i % 2, i / 2, {-by_key.x, -by_key.y});
            }
        const int own = 2 * quarter();
        const unsigned rows = rows_of(shared.products.pairs.queries);
#pragma unroll 1
        for (int other = 0; other < own; ++other) {
            if (!kResidual && own == 6 && other == 4) {
                const KdaEighthPairs anew(shared);  // addresses would be computed ahead of the loop, by all warps
                anew.store_quarter_sums(
                    shared.carried.over_third, [&](int half, int tile) { return anew.row_term(query, key, half, tile); }, 6, 4,
                    5);
            }
            pass<0>(other, query, key);
            pass<1>(other, query, key);
            Right right;
            load(right, shared.products.earlier_key, other);
            unsigned left[4];
            ldmatrix_x4(left, row_vector(rows, other));
            multiply(query, left, right);
            ldmatrix_x4(left, row_vector(rows, other) + kKeys);
            multiply(key, left, right);
        }
        pass<1>(own, query, key);
        if (!kResidual)
            store_sums(shared.carried.over_lower[quarter()], [&](int tile) { return row_term(query, key, 1, tile); });
        Right right;
        load(right, shared.products.earlier_key, own);
        unsigned left[4];
        ldmatrix_x4(left, own_pairs());
        multiply(query, {0, left[0], 0, left[1]}, right);
        multiply(key, {0, left[2], 0, left[3]}, right);
        find_place();  // anew: addresses would be computed early, and registers spill
        store<kResidual>(0, query);
        store<kResidual>(1, key);
    }
    __device__ __forceinline__ float2 row_term(const Sums& query, const Sums& key, int half, int tile) const {
        const float2 q = own_pair(shared.rows.query, half, tile), k = own_pair(shared.rows.key, half, tile);
        const float *const by_query = &query[tile][2 * half], *const by_key = &key[tile][2 * half];
        return {fmaf(q.x, by_query[0], k.x * by_key[0]), fmaf(q.y, by_query[1], k.y * by_key[1])};
    }
    __device__ __forceinline__ void add_columns() {
        Sums key;
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) set(key, i % 2, i / 2, product(2, i % 2, i / 2));
        const int own = 2 * quarter();
        const unsigned columns = columns_of(shared.products.pairs.queries);
#pragma unroll 1
        for (int other = kEighths - 1; other > own + 1; --other) {
            if (own == 0 && other == 3) {
                const KdaEighthPairs anew(shared);
                anew.store_quarter_sums(
                    shared.carried.over_second, [&](int half, int tile) { return anew.column_term(key, 1 - half, tile); }, 1, 2,
                    3);
            }
            pass<0>(other, key);
            pass<1>(other, key);
            const unsigned at = columns + (other - kFirstRows) * kTokens * 128;
            Right right;
            unsigned left[4];
            load(right, shared.rows.query, other);
            ldmatrix_x4_trans(left, at);
            multiply(key, left, right);
            load(right, shared.rows.key, other);
            ldmatrix_x4_trans(left, at + kKeys);
            multiply(key, left, right);
        }
        pass<0>(own + 1, key);
        store_sums(shared.carried.over_upper[quarter()], [&](int tile) { return column_term(key, 0, tile); });
        unsigned left[4];
        ldmatrix_x4_trans(left, own_pairs());
        Right right;
        load(right, shared.rows.query, own + 1);
        multiply(key, {left[0], 0, left[1], 0}, right);
        load(right, shared.rows.key, own + 1);
        multiply(key, {left[2], 0, left[3], 0}, right);
        find_place();
        store<false>(2, key);
    }
    __device__ __forceinline__ float2 column_term(const Sums& key, int half, int tile) const {
        const float2 k = own_pair(shared.products.earlier_key, half, tile);
        return {k.x * key[tile][2 * half], k.y * key[tile][2 * half + 1]};
    }

    __device__ __forceinline__ static void set(Sums& sums, int half, int tile, float2 pair) {
        sums[tile][2 * half] = pair.x;
        sums[tile][2 * half + 1] = pair.y;
    }
    // Sums of one of the quarter's eighths times the decays of an eighth.
    template <int kHalf, class... All>
    __device__ __forceinline__ void pass(int other, All&... sums) const {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 decay = pair_at(&shared.whole[other][channel(tile)]);
            ((sums[tile][2 * kHalf] *= decay.x, sums[tile][2 * kHalf + 1] *= decay.y), ...);
        }
    }
    template <bool kAdds>
    __device__ __forceinline__ void store(int which, const Sums& sums) const {
#pragma unroll
        for (int i = 0; i < 2 * kTiles; ++i) {
            const int half = i % 2, tile = i / 2;
            float2& to = product(which, half, tile);
            const float2 before = kAdds ? to : float2{};
            const float* const pair = &sums[tile][2 * half];
            to = kAdds ? float2{before.x + pair[0], before.y + pair[1]} : float2{pair[0], pair[1]};
        }
    }
    // Sums of terms(tile), pairs of channels, over the tokens of an eighth, times the decays of other eighths.
    template <class Terms, class... Others>
    __device__ __forceinline__ void store_sums(KdaGradientsPlan::Channels& to, Terms&& terms, Others... others) const {
        float values[2 * kTiles];
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const float2 sum = terms(tile);
            values[2 * tile] = sum.x;
            values[2 * tile + 1] = sum.y;
        }
        // A lane keeps the half of the values that its bit of g has: in the end g's.
        add_lanes<4>(values, 16);
        add_lanes<2>(values, 8);
        add_lanes<1>(values, 4);
        const int own = channel(g / 2) + g % 2;
        ((values[0] *= shared.whole[others][own]), ...);
        to[own] = values[0];
    }
    // The same over the quarter. Terms of half 1 have a decay more.
    template <class Terms, class... Others>
    __device__ __forceinline__ void store_quarter_sums(KdaGradientsPlan::Channels& to, Terms&& terms, int more,
                                                       Others... others) const {
        store_sums(
            to,
            [&](int tile) {
                const float2 first = terms(0, tile), second = terms(1, tile),
                             decay = pair_at(&shared.whole[more][channel(tile)]);
                return float2{fmaf(decay.x, second.x, first.x), fmaf(decay.y, second.y, first.y)};
            },
            others...);
    }
    template <int kCount>
    __device__ __forceinline__ void add_lanes(float* values, int step) const {
        const bool upper = (lane & step) != 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            const float kept = upper ? values[i + kCount] : values[i], given = upper ? values[i] : values[i + kCount];
            values[i] = kept + __shfl_xor_sync(0xffffffffu, given, step);
        }
    }
};

}  // namespace gdn_cuda::gdn
