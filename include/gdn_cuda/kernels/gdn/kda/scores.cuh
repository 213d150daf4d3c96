// Scores of a chunk by warp MMAs and wgmmas of operands that gdn/kda_prepare has written: k k^T for A, in fp32 blocks of -A,
// and q k^T for P, rounded and its residual. Decays are in the operands (kda/elements.cuh).
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/gdn/kda/preparing_block.cuh>
#include <gdn_cuda/kernels/gdn/kda/warp.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>

namespace gdn_cuda::gdn {

template <DType kIo, class Thread = KdaBlockThread>
struct KdaScores : KdaWarp {
    static constexpr int kSteps = kKdaHeadK / 16;

    KdaPreparePlan& shared;

    __device__ __forceinline__ explicit KdaScores(KdaPreparePlan& shared, Thread thread = {}) : shared(shared) {
        find_lane(thread.index());
    }

    // From the tiles as loaded: squares of keys or queries, by each warpgroup's wgmmas.
    __device__ __forceinline__ void start_norms(float (&squares)[32]) const {
        const SwizzledTile* const tiles = tiles_of(warp >= 4);
        start_row_products<kIo, kKdaHeadK>(squares, tiles, tiles);
    }
    // Inverse norms of keys and queries, or 1; 16 tokens a warp. Tokens past the end have none. Returns whether a key is so
    // large that products may overflow.
    __device__ __forceinline__ bool store_norms(float (&squares)[32], const GdnCall& call, float query_scale,
                                                unsigned tokens) const {
        constexpr float kLargestSquare = kKdaLargest * kKdaLargest;
        const bool queries = warp >= 4;
        const unsigned block = 16 * (warp % 4);
        wait_for_product(squares);
        float* const to = (queries ? shared.factors.query_norm : shared.factors.key_norm) + block + g;
        const float scale = queries ? query_scale : 1.f;
        bool is_large = false;
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {  // in lanes t = g / 2
            const float square =
                in_own_block([&](unsigned first) { return g % 2 == 0 ? squares[first + 6 * i] : squares[first + 6 * i + 1]; });
            const bool exists = block + g + 8 * i < tokens;
            const float norm = call.qk_norm && exists ? scale * inverse_root(square + kNormEpsilon) : scale;
            if (t == g / 2) to[8 * i] = norm;
            is_large |= t == g / 2 && exists && !queries && !(square < kLargestSquare);
        }
        return is_large;
    }
    // The same tiles' q.k, by four warps, which become the diagonal of P.
    __device__ __forceinline__ void store_products_of_tokens() const {
        if (warp >= 4) return;
        float products[2];
        multiply_with_own(products, shared.operands.query, shared.operands.key, 16 * warp);
        if (t == g / 2)
#pragma unroll
            for (unsigned i = 0; i < 2; ++i) shared.query_key[16 * warp + g + 8 * i] = products[i];
    }

    // Around one border, keys against keys: a block of 16 x 16 on the diagonal for each of the first four warps, which then
    // inverts it.
    __device__ __forceinline__ void multiply_own_keys() const {
        float sums[32], own[2][4];
        multiply_rows(sums, shared.operands.key, shared.operands.other_key);
#pragma unroll
        for (unsigned i = 0; i < 8; ++i) own[i / 4][i % 4] = in_own_block([&](unsigned first) { return sums[first + i]; });
        clear_above_diagonal(own);
        store(false, 16 * warp, 16 * warp, own);
    }
    // By the other four warps: the blocks below the diagonal, then arrive(), as the warps that invert wait for these, then
    // queries against keys.
    template <class Arrive>
    __device__ __forceinline__ void multiply_others(Arrive&& arrive) const {
        const unsigned row = warp % 4;
        float keys[32], queries[32];
        start_row_products<kIo, kKdaHeadK>(keys, shared.operands.key, shared.operands.other_key);
        start_row_products<kIo, kKdaHeadK>(queries, shared.operands.query, shared.operands.other_key);
        wait_for_product<1>(keys);
#pragma unroll
        for (unsigned n = 0; n < 6; ++n)
            if (n / 2 < row) store_block(16 * row, 8 * n, four_of(keys, n));
        arrive();
        wait_for_product(queries);
        store_row<true>(queries);
    }
    // Around one border, all of them: keys against keys by four warps, queries against keys by the others.
    __device__ __forceinline__ void multiply_all() const {
        float sums[32];
        multiply_rows(sums, tiles_of(warp >= 4), shared.operands.other_key);
        if (warp < 4)
            store_row<false>(sums);
        else
            store_row<true>(sums);
    }
    // Scores within the chunk's halves: a row of blocks a warp.
    __device__ __forceinline__ void multiply_blocks_of_halves() const {
        const bool queries = warp >= 4;
        const unsigned row = warp % 4, first = row / 2 * 2;
        const auto& operands = shared.operands;
        const OperandRow left(queries ? operands.query : operands.key, 16 * row + left_row(), left_vector()),
            right(operands.other_key, right_row(), right_vector());
        float sums[2][2][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned a[4];
            ldmatrix_x4(a, left.at(step));
#pragma unroll
            for (unsigned i = 0; i < 2; ++i)
                if (first + i <= row) multiply_step(sums[i], a, right.at(step) + (first + i) * kMnMajorStep);
        }
#pragma unroll
        for (unsigned i = 0; i < 2; ++i) {
            if (first + i > row) continue;
            if (first + i == row) clear_above_diagonal(sums[i]);
            store(queries, 16 * row, 16 * (first + i), sums[i]);
        }
    }
    // Tokens 32 and up against those below: 16 rows of keys or queries x 16 columns a warp.
    __device__ __forceinline__ void multiply_halves_of_32() const {
        const bool queries = warp >= 4;
        const unsigned block = 16 * (warp / 2 % 2), column = 16 * (warp % 2);
        float sums[2][4] = {};
        const auto& operands = shared.operands;
        multiply(sums, queries ? operands.query : operands.key, queries ? block : 32 + block, operands.key, column);
        store(queries, 32 + block, column, sums);
    }
    // Within each half, 16 tokens against 16: 16 rows x 8 columns a warp.
    __device__ __forceinline__ void multiply_halves_of_16() const {
        const bool queries = warp / 2 % 2;
        const unsigned half = 32 * (warp / 4), column = half + 8 * (warp % 2);
        const auto& operands = shared.operands;
        float sums[4];
        multiply_eight(sums, queries ? operands.query : operands.other_key, (queries ? 32 + half / 2 : half + 16) + lane % 16,
                       operands.other_key, column + lane % 8);
        store_eight(queries, half + 16, column, sums);
    }
    // Blocks of 16 tokens on the diagonal, keys or queries a warp. Above the diagonal the decays have no bound.
    __device__ __forceinline__ void multiply_diagonal() const {
        const bool queries = warp >= 4;
        const unsigned block = 16 * (warp % 4);
        float sums[2][4] = {};
        const auto& operands = shared.operands;
        multiply(sums, queries ? operands.query : operands.key, block, operands.other_key, block);
        clear_above_diagonal(sums);
        store(queries, block, block, sums);
    }
    // Halves of `first` tokens, from the operands of levels 32 and 16, and of first / 2: a warp has the scores of a quarter.
    __device__ __forceinline__ void multiply_small_halves(unsigned first) const {
        const bool second = warp >= 4;
        const unsigned half = second ? first / 2 : first, quarter = 16 * (warp % 4), row = lane % 16;
        const auto& operands = shared.operands;
        const SwizzledTile* const keys = second ? operands.other_key : operands.key;
        const bool is_query = row >= 8;
        const unsigned left = is_query ? 32 * second + quarter / 2 + row - 8 : quarter + upper(row, half);
        float sums[4];
        multiply_eight(sums, is_query ? operands.query : keys, left, keys, quarter + lower(lane % 8, half));
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
            const unsigned column = 2 * t + i % 2;
            if ((g ^ column) < half) store_one(i >= 2, quarter + upper(g, half), quarter + lower(column, half), sums[i]);
        }
    }
    // Scores of the blocks on the diagonal, of which some elements are not formed.
    __device__ __forceinline__ void clear_diagonal() const {
        const unsigned row = threadIdx.x / 2 % kChunk, vector = row / 16 * 2 + threadIdx.x % 2;
        store_shared(row_vector(tile_row(shared.matrices.scores[warp / 4].bytes, row), vector), uint4{});
    }
    // In both parts of T and P: nothing else writes what is above the blocks on the diagonal.
    __device__ __forceinline__ void clear_blocks_above_diagonal() const {
        constexpr unsigned kVectors = kChunk / 8;
        const unsigned thread = 32 * warp + lane, row = thread % kChunk;
        SwizzledTile* const tiles = shared.matrices.inverse;
        const unsigned at = tile_row(tiles[thread / kChunk].bytes, static_cast<int>(row));
#pragma unroll
        for (unsigned vector = 2; vector < kVectors; ++vector)
            if (vector / 2 > row / 16) store_shared(row_vector(at, static_cast<int>(vector)), uint4{});
    }
    __device__ __forceinline__ void store_one(bool queries, unsigned row, unsigned column, float x) const {
        if (queries) {
            const unsigned rounded = pack<kIo>(x, 0.f), residual = pack_residual<kIo>(x, 0.f, rounded);
            *score_at(0, row, column) = static_cast<unsigned short>(rounded);
            *score_at(1, row, column) = static_cast<unsigned short>(residual);
        } else {
            block_of(row, column)[TriangleBlock::at(row % 16, column % 16)] =
                -shared.beta[row] * shared.factors.key_norm[row] * shared.factors.key_norm[column] * x;
        }
    }

  private:
    // The r-th token of a quarter in the upper or lower halves, of a power of two tokens.
    __device__ __forceinline__ static unsigned upper(unsigned r, unsigned half) { return lower(r, half) + half; }
    __device__ __forceinline__ static unsigned lower(unsigned r, unsigned half) { return 2 * r - (r & half - 1); }

    __device__ __forceinline__ float* block_of(unsigned row, unsigned column) const {
        return shared.triangle[row / 16 * (row / 16 + 1) / 2 + column / 16].values;
    }
    __device__ __forceinline__ unsigned short* score_at(unsigned part, unsigned row, unsigned column) const {
        unsigned char* const tile = shared.matrices.scores[part].bytes;
        return reinterpret_cast<unsigned short*>(tile + row * 128 + ((column / 8 ^ row % 8) << 4) + 2 * (column % 8));
    }

    // Products of rows block + g and block + g + 8 of x with the same rows of y: in lanes t = g / 2.
    __device__ __forceinline__ void multiply_with_own(float (&products)[2], const SwizzledTile* x, const SwizzledTile* y,
                                                      unsigned block) const {
        float sums[2][4] = {};
        multiply(sums, x, block, y, block);
#pragma unroll
        for (int i = 0; i < 2; ++i) products[i] = g % 2 == 0 ? sums[i][2 * i] : sums[i][2 * i + 1];
    }
    // Keys or queries. By one address: a register for each would spill.
    __device__ __forceinline__ const SwizzledTile* tiles_of(bool queries) const {
        const SwizzledTile* const keys = shared.operands.key;
        return keys + (queries ? 2 * kKdaTiles : 0);
    }
    // sums = left right^T, by a warpgroup's wgmmas.
    __device__ __forceinline__ static void multiply_rows(float (&sums)[32], const SwizzledTile* left,
                                                         const SwizzledTile* right) {
        start_row_products<kIo, kKdaHeadK>(sums, left, right);
        wait_for_product(sums);
    }
    // Columns 8 n and up of 64 x 64 products.
    using Four = float[4];
    __device__ __forceinline__ static const Four& four_of(const float (&sums)[32], unsigned n) {
        return *reinterpret_cast<const Four*>(&sums[4 * n]);
    }
    // An element of this warp's block on the diagonal of 64 x 64 products. at(first): the same element of the block whose
    // accumulators start at `first`.
    template <class At>
    __device__ __forceinline__ float in_own_block(At&& at) const {
        const bool odd = warp % 2 != 0;
        const float low = odd ? at(8) : at(0), high = odd ? at(24) : at(16);
        return warp % 4 < 2 ? low : high;
    }
    // sums += a (one step's rows) x right rows.
    __device__ __forceinline__ static void multiply_step(float (&sums)[2][4], const unsigned (&a)[4], unsigned right) {
        unsigned b[4];
        ldmatrix_x4(b, right);
        mma_m16n8k16<kIo>(sums[0], a, b[0], b[1]);
        mma_m16n8k16<kIo>(sums[1], a, b[2], b[3]);
    }
    // sums += 16 left rows x 16 right rows, in two chains of dependent MMAs.
    __device__ __forceinline__ void multiply(float (&sums)[2][4], const SwizzledTile* left, unsigned left_first,
                                             const SwizzledTile* right, unsigned right_first) const {
        const OperandRow left_at(left, left_first + left_row(), left_vector()),
            right_at(right, right_first + right_row(), right_vector());
        float odd[2][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned a[4];
            ldmatrix_x4(a, left_at.at(step));
            multiply_step(step % 2 == 0 ? sums : odd, a, right_at.at(step));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] += odd[i / 4][i % 4];
    }
    // The same with eight columns, and this lane's own rows.
    __device__ __forceinline__ void multiply_eight(float (&sums)[4], const SwizzledTile* left, unsigned left_own,
                                                   const SwizzledTile* right, unsigned right_own) const {
        const OperandRow left_at(left, left_own, lane / 16), right_at(right, right_own, lane / 8);
#pragma unroll
        for (float& x : sums) x = 0.f;
#pragma unroll
        for (int step = 0; step < kSteps; step += 2) {
            unsigned a[4], next[4], b[4];
            ldmatrix_x4(a, left_at.at(step));
            ldmatrix_x4(next, left_at.at(step + 1));
            ldmatrix_x4(b, right_at.at(step));
            mma_m16n8k16<kIo>(sums, a, b[0], b[1]);
            mma_m16n8k16<kIo>(sums, next, b[2], b[3]);
        }
    }
    __device__ __forceinline__ void clear_above_diagonal(float (&sums)[2][4]) const {
#pragma unroll
        for (unsigned n = 0; n < 2; ++n)
#pragma unroll
            for (unsigned i = 0; i < 4; ++i)
                if (8 * n + 2 * t + i % 2 > g + 8 * (i / 2)) sums[n][i] = 0.f;
    }

    // This warp's 16 rows of 64 x 64 products, up to the diagonal.
    template <bool kQueries>
    __device__ __forceinline__ void store_row(const float (&sums)[32]) const {
        const unsigned row = warp % 4;
#pragma unroll
        for (unsigned column = 0; column < 4; ++column) {
            if (column > row) break;
            float block[2][4];
#pragma unroll
            for (unsigned i = 0; i < 8; ++i) block[i / 4][i % 4] = sums[8 * column + i];
            if (column == row) clear_above_diagonal(block);
            store(kQueries, 16 * row, 16 * column, block);
        }
    }
    // At multiples of 16 rows, and of 16 or 8 columns.
    __device__ __forceinline__ void store(bool queries, unsigned row, unsigned column, const float (&sums)[2][4]) const {
#pragma unroll
        for (unsigned n = 0; n < 2; ++n) store_eight(queries, row, column + 8 * n, sums[n]);
    }
    __device__ __forceinline__ void store_eight(bool queries, unsigned row, unsigned column, const float (&sums)[4]) const {
        if (queries)
            store_scores(row, column, sums);
        else
            store_block(row, column, sums);
    }
    __device__ __forceinline__ void store_scores(unsigned row, unsigned column, const float (&sums)[4]) const {
        const unsigned to = pair_at(shared.matrices.scores, row, column);
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const float x = sums[2 * half], next = sums[2 * half + 1];
            const unsigned rounded = pack<kIo>(x, next);
            store_shared(to + half * kEightRows, rounded);
            store_shared(to + half * kEightRows + sizeof(SwizzledTile), pack_residual<kIo>(x, next, rounded));
        }
    }
    __device__ __forceinline__ void store_block(unsigned row, unsigned column, const float (&sums)[4]) const {
        float* const to = block_of(row, column) + (TriangleBlock::at(g, 2 * t) ^ (column & 8));
        const float2 norms = gdn_cuda::pair_at(&shared.factors.key_norm[column + 2 * t]);
        const unsigned round = row / 16 != column / 16 ? kToTf32 : 0;  // a factor of tf32 products
#pragma unroll
        for (unsigned half = 0; half < 2; ++half) {
            const unsigned token = row + g + 8 * half;
            const float factor = -shared.beta[token] * shared.factors.key_norm[token];
            *reinterpret_cast<uint2*>(to + half * TriangleBlock::kEightRows) = {
                __float_as_uint(sums[2 * half] * (factor * norms.x)) + round,
                __float_as_uint(sums[2 * half + 1] * (factor * norms.y)) + round};
        }
    }
};

}  // namespace gdn_cuda::gdn
