// The part of gdn/kda_mma that needs no state: loads keys, queries and betas, and computes norms and scores.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>
#include <gdn_cuda/kernels/gdn/kda_mma/lane.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

template <KdaMmaConfig kConfig>
struct KdaMmaTokens : MmaPartsLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kSteps = kConfig.head_k / 16, kVectors = kConfig.head_k / 8;
    static constexpr int kTokenLanes = kConfig.threads() / kKdaMmaTokens;
    using Plan = KdaMmaPlan<kConfig>;

    Plan& shared;
    const GdnCall& call;
    const MmaWork& work = shared.work;
    RawGates next;  // beta of this thread's token in the next chunk

    __device__ __forceinline__ KdaMmaTokens(Plan& shared, const GdnCall& call) : shared(shared), call(call) {}
    __device__ __forceinline__ void refresh() { MmaPartsLane::refresh<kConfig.head_k>(work.first_thread); }
    __device__ __forceinline__ int tokens_in(int chunk) const {
        return min(kKdaMmaTokens, work.length - chunk * kKdaMmaTokens);
    }
    __device__ __forceinline__ int token() const { return thread / kTokenLanes; }

    // Warps without channels have no resets.
    __device__ __forceinline__ void clear_resets() const {
        if (thread < 8) shared.resets[thread] = 0;
    }
    __device__ __forceinline__ void load(int chunk) {
        refresh();
        if (tokens_in(chunk) <= 0) return;
        load_rows(shared.key, work.key, call.key.token, chunk);
        load_rows(shared.query, work.query, call.query.token, chunk);
    }
    __device__ __forceinline__ void issue_beta_loads(int chunk) {
        refresh();
        next.beta = 0;
        if (token() < tokens_in(chunk))
            next.load_beta(call, work.beta + (chunk * i64{kKdaMmaTokens} + token()) * call.beta.token);
    }
    // Norms, beta, and the diagonal of P.
    __device__ __forceinline__ void store_factors(int chunk) {
        refresh();
        float products[3] = {};  // k.k, q.q, q.k
        const int first = thread % kTokenLanes;
        constexpr unsigned kQueries = sizeof(shared.key);  // they follow the keys
        const unsigned keys = shared_address(shared.key);
#pragma unroll
        for (int i = 0; i < kVectors; i += kTokenLanes) {
            const int vector = first + i;
            if (i + kTokenLanes > kVectors && vector >= kVectors) continue;
            const unsigned at = vector / 8 * static_cast<int>(sizeof(KdaMmaTile)) + kda_tile_vector(token(), vector % 8);
            const uint4 k = load_shared(keys + at), q = load_shared(keys + at + kQueries);
            const unsigned key[4] = {k.x, k.y, k.z, k.w}, query[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float2 a = unpack<kIo>(key[n]), b = unpack<kIo>(query[n]);
                products[0] = fmaf(a.x, a.x, fmaf(a.y, a.y, products[0]));
                products[1] = fmaf(b.x, b.x, fmaf(b.y, b.y, products[1]));
                products[2] = fmaf(a.x, b.x, fmaf(a.y, b.y, products[2]));
            }
        }
#pragma unroll
        for (float& x : products) x = group_sum<kTokenLanes>(x);
        if (first != 0) return;
        const float key_norm = call.qk_norm ? rsqrtf(products[0] + kNormEpsilon) : 1.f,
                    query_norm = call.scale * (call.qk_norm ? rsqrtf(products[1] + kNormEpsilon) : 1.f);
        shared.beta[token()] = token() < tokens_in(chunk) ? next.beta_of(call, call.forms) : 0.f;
        shared.key_norm[token()] = key_norm;
        shared.query_norm[token()] = query_norm;
        shared.scores.at[token()][token()] = products[2] * (query_norm * key_norm);
    }
    // Four warps, each a level: keys and queries of upper halves with keys of lower ones.
    __device__ __forceinline__ void form_scores() {
        refresh();
        if (warp >= kKdaMmaLevels) return;
        const int half = kKdaMmaHalf >> warp;
        const KdaTileRow left(shared.levels.left[warp], VectorOfLane::straight(lane)),
            right = warp < kKdaMmaLevels - 1 ? KdaTileRow(shared.levels.right[warp], lane % 8, lane / 8)
                                             : KdaTileRow(shared.key, lower(lane % 8, half), lane / 8);
        float sums[2][4] = {};  // of every other step
#pragma unroll
        for (int step = 0; step < kSteps; step += 2) {
            unsigned a[2][4], b[4];
            ldmatrix_x4(a[0], left.at(step));
            ldmatrix_x4(a[1], left.at(step + 1));
            ldmatrix_x4(b, right.at(step));
            mma_m16n8k16<kIo>(sums[0], a[0], b[0], b[1]);
            mma_m16n8k16<kIo>(sums[1], a[1], b[2], b[3]);
        }
        const int i = lower(g, half) + half;
        const float factors[2] = {shared.beta[i] * shared.key_norm[i], shared.query_norm[i]};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            const int column = 2 * t + n, j = lower(column, half);
            if (g / half != column / half) continue;
            const float norm = shared.key_norm[j];
            shared.scores.at[i][j] = (sums[0][n] + sums[1][n]) * (factors[0] * norm);
            shared.scores.at[j][i] = (sums[0][n + 2] + sums[1][n + 2]) * (factors[1] * norm);
        }
    }

  private:
    // The r-th token of lower halves.
    __device__ __forceinline__ static int lower(int r, int half) { return 2 * r - r % half; }

    // Zeros past the end of the sequence and past dk.
    __device__ __forceinline__ void load_rows(const KdaMmaTile* tiles, const void* head, i64 stride, int chunk) const {
        constexpr int kAll = kKdaMmaTokens * kVectors, kThreads = kConfig.threads();
        const int count = tokens_in(chunk);
        const auto* rows = static_cast<const Storage<kIo>*>(head) + chunk * kKdaMmaTokens * stride;
#pragma unroll
        for (int first = 0; first < kAll; first += kThreads) {
            const unsigned index = thread + first;
            if (first + kThreads > kAll && index >= kAll) continue;
            const unsigned row = index / kVectors, vector = index % kVectors;
            const bool exists = static_cast<int>(row) < count && static_cast<int>(8 * vector) < call.dk;
            cp_async_16_zfill(shared_address(tiles[vector / 8].bytes) + kda_tile_vector(row, vector % 8),
                              exists ? rows + row * stride + 8 * vector : head, exists);
        }
    }
};

}  // namespace gdn_cuda::gdn
