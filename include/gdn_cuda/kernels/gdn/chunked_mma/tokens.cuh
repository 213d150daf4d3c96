// The part of the chunked form by warp MMAs that needs no state: loads keys, queries, gates and beta, and computes the factors
// of gates and norms, the inverse T and the scores P.
//
// Chunks are counted in the order in which a block takes them; in_time says where one is in the sequence.
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/lane.cuh>

namespace gdn_cuda::gdn {

template <auto kConfig>
struct MmaTokens : MmaPartsLane {
    static constexpr DType kIo = kConfig.io;
    static constexpr int kBlocks = kInverseWarps, kSteps = kConfig.head_k / 16;
    using Plan = MmaPlan<kConfig>;
    using Tile = MmaTile;
    static constexpr int kScoreThreads = kConfig.threads() - kInverseWarps * 32;
    enum NamedBarriers : int { kInverseWarpsBarrier = 1, kFactorsReady, kInverseReady };

    Plan& shared;
    const GdnCall& call;
    const MmaWork& work = shared.work;
    RawElement raw_gates[2], raw_beta;  // the next chunk's, loaded long before they are used

    __device__ __forceinline__ MmaTokens(Plan& shared, const GdnCall& call) : shared(shared), call(call) {}
    __device__ __forceinline__ void refresh() { MmaPartsLane::refresh<kConfig.head_k>(work.first_thread); }

    __device__ __forceinline__ int in_time(int chunk) const { return chunk_in_time<kConfig.direction>(work, chunk); }
    __device__ __forceinline__ int tokens_in(int chunk) const { return tokens_of_chunk<kConfig.direction>(work, chunk); }

    // Loads a chunk of keys or queries; zeros past the end of the sequence and past dk.
    template <int kThreads>
    __device__ __forceinline__ void load_rows(Tile* tiles, const void* head, i64 stride, int chunk) {
        refresh();
        using Io = Storage<kIo>;
        constexpr int kVectors = 8, kRows = kThreads / kVectors, kRowBytes = 128;
        const int count = tokens_in(chunk), first = thread % kThreads / kVectors, vector = thread % kVectors;
        const unsigned to = row_vector(tile_row(tiles, first), vector);
        const Io* from = static_cast<const Io*>(head) + (in_time(chunk) * kChunk + first) * stride + 8 * vector;
#pragma unroll
        for (int i = 0; i < kChunk / kRows; ++i)
#pragma unroll
            for (int tile = 0; tile < kConfig.key_tiles(); ++tile) {
                const int element = tile * kMmaTileElements + 8 * vector;
                if (element >= kConfig.head_k) continue;
                const bool exists = first + i * kRows < count && element < call.dk;
                const void* at = from + i * kRows * stride + tile * kMmaTileElements;
                cp_async_16_zfill(to + tile * kTileBytes + i * kRows * kRowBytes, exists ? at : head, exists);
            }
    }
    // Tokens past the end get zeros: no decay, no update. In a chunk past the end all tokens do, so that no register keeps an
    // old value.
    __device__ __forceinline__ void issue_scalar_loads(int chunk) {
        refresh();
        const int count = tokens_in(chunk);
        const auto issue_load = [&](RawElement& raw, const Scalars& scalars, i64 first, int token) {
            raw = {};
            if (token < count) raw.load(scalars.values, first + (in_time(chunk) * kChunk + token) * scalars.token);
        };
        issue_load(raw_gates[0], call.gate, work.gate, lane);
        issue_load(raw_gates[1], call.gate, work.gate, lane + 32);
        issue_load(raw_beta, call.beta, work.beta, thread % kChunk);
    }
    template <int kThreads = kConfig.threads()>
    __device__ __forceinline__ void load_keys(int chunk) {
        if (chunk < work.chunks) load_rows<kThreads>(shared.key[chunk % kConfig.key_stages], work.key, call.key.token, chunk);
    }
    __device__ __forceinline__ void load_queries(int chunk) {
        if (chunk < work.chunks) load_rows<kConfig.threads()>(shared.query, work.query, call.query.token, chunk);
    }
    // Load the next chunk once its buffers are free.
    __device__ __forceinline__ void load_next_queries(int chunk) { load_queries(chunk + 1); }
    __device__ __forceinline__ void load_next_keys(int chunk) {
        if (kConfig.key_stages > 1) return;
        __syncthreads();
        load_keys(chunk + 1);
        issue_scalar_loads(chunk + 1);
    }

    // The cumulative gates (log2) of tokens lane and lane + 32; `resets`: whether a gate of the chunk is a reset.
    __device__ __forceinline__ float2 cumulated_gates(bool& resets) const {
        float sums[2];
#pragma unroll
        for (int half = 0; half < 2; ++half)
            sums[half] = at_least(kLog2e * raw_gates[half].to_float(call.gate.values.type), kLowestGateLog2);
        resets = __any_sync(0xffffffffu, fminf(sums[0], sums[1]) < kResetGateLog2);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, sums[half], step);
                if (lane >= step) sums[half] += before;
            }
        }
        return {sums[0], sums[1] + __shfl_sync(0xffffffffu, sums[0], 31)};
    }
    // log2(rsqrt(|x|^2 + epsilon)) of a row.
    __device__ __forceinline__ float log_inverse_norm(const Tile* tiles, int row) const {
        const unsigned first = tile_row(tiles, row);
        float square = 0.f;
#pragma unroll
        for (int vector = 0; vector < kConfig.head_k / 8; ++vector) {
            const uint4 eight = load_shared(row_vector(first, vector % 8) + vector / 8 * kTileBytes);
            const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack<kIo>(pairs[i]);
                square = fmaf(x.x, x.x, fmaf(x.y, x.y, square));
            }
        }
        return -0.5f * __log2f(square + kNormEpsilon);
    }
    // Four warps call: half of the threads have one key each, the others one query each.
    __device__ __forceinline__ void compute_factors(const Tile* keys) {
        auto& factors = shared.factors;
        const int token = thread % kChunk;
        const bool has_key = warp % 4 < 2;
        const float log_norm =
            call.qk_norm ? log_inverse_norm(has_key || !kConfig.has_queries() ? keys : shared.query, token) : 0.f;
        bool resets;
        const float2 gates = cumulated_gates(resets);
        const float gate = warp % 2 == 0 ? gates.x : gates.y, end = __shfl_sync(0xffffffffu, gates.y, 31);
        if (has_key) {
            float beta = raw_beta.to_float(call.beta.values.type);
            if constexpr (requires { kConfig.beta_of_zero(); }) beta = beta == 0.f ? kConfig.beta_of_zero() : beta;
            factors.gate[token] = gate;
            factors.column[token] = gate - log_norm;
            factors.beta[token] = beta;
            factors.key_row[token] = beta * exp2_fast(log_norm);
            factors.key_state[token] = exp2_fast(gate + log_norm);
            factors.update[token] = exp2_fast(end - gate + log_norm);
        } else {
            factors.query_row[token] = call.scale * exp2_fast(log_norm);
            factors.query_state[token] = call.scale * exp2_fast(gate + log_norm);
            if (token == 0) {
                factors.decay = exp2_fast(end);
                factors.resets = resets;
            }
        }
    }

    // Multiplies 16 tokens with all keys, also above the diagonal: branches would cost more, as the compiler moves no
    // instruction across them.
    __device__ __forceinline__ void multiply(TokenSums& products, const Tile* rows, int row_block, const Tile* keys) const {
#pragma unroll
        for (int n = 0; n < 2 * kBlocks; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) products[n][i] = 0.f;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4(left, straight_vector(rows, step) + row_block * kRowBlockBytes);
            add_token_products<kIo>(products, left, keys, step);
        }
    }
    // Multiplies products by a factor of their row and by exp(G_i - G_j) r_j. Results above the diagonal are undefined.
    __device__ __forceinline__ void decay(TokenSums& products, int row_block, const float (&factors)[kChunk]) const {
        const auto& scalars = shared.factors;
        const int row = kInverseBlock * row_block + g;
        const float gate[2] = {scalars.gate[row], scalars.gate[row + 8]}, factor[2] = {factors[row], factors[row + 8]};
#pragma unroll
        for (int n = 0; n < 2 * kBlocks; ++n) {
            const float2 column = pair_of(scalars.column, n);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                products[n][i] *= factor[i / 2] * exp2_fast(gate[i / 2] - (i % 2 == 0 ? column.x : column.y));
        }
    }
    __device__ __forceinline__ void store_scores(TokenSums& products, int row_block) const {
        decay(products, row_block, shared.factors.query_row);
#pragma unroll
        for (int n = 0; n < 2 * kBlocks; ++n) {
            if (n / 2 > row_block) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int distance = kInverseBlock * row_block + g + 8 * half - 8 * n - 2 * t;
                store_parts<kIo>(shared.scores[ChunkTriangle::index_of(row_block, n / 2)], n % 2, half,
                                 distance >= 0 ? products[n][2 * half] : 0.f, distance >= 1 ? products[n][2 * half + 1] : 0.f);
            }
        }
    }
    __device__ __forceinline__ void form_scores(TokenSums& products, int row_block, const Tile* keys) const {
        if constexpr (kConfig.has_queries()) {
            multiply(products, shared.query, row_block, keys);
            store_scores(products, row_block);
        }
    }
    __device__ __forceinline__ void store_to_invert(const TokenSums& products) const {
#pragma unroll
        for (int n = 0; n < 2 * kBlocks; ++n) {
            if (n / 2 > warp) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(&shared.inverse.block(warp, n / 2).at[g + 8 * half][n % 2 * 8 + 2 * t]) = {
                    products[n][2 * half], products[n][2 * half + 1]};
        }
    }
    // Multiplies a row of blocks of the inverse by diag(beta), and converts it from fp32 to two parts in place.
    __device__ __forceinline__ void round_inverse(int row) {
        float2 pairs[kBlocks][2][2];
#pragma unroll
        for (int column = 0; column < kBlocks; ++column)
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    pairs[column][n][half] = *reinterpret_cast<const float2*>(
                        &shared.inverse.block(row, min(column, row)).at[g + 8 * half][8 * n + 2 * t]);
        __syncwarp();
#pragma unroll
        for (int column = 0; column < kBlocks; ++column) {
            if (column > row) continue;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float2 beta = pair_of(shared.factors.beta, 2 * column + n);
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    store_parts<kIo>(as_two_parts(shared.inverse.block(row, column)), n, half,
                                     pairs[column][n][half].x * beta.x, pairs[column][n][half].y * beta.y);
            }
        }
    }

    // Stores the warp's row of blocks of A. Four warps call.
    __device__ __forceinline__ void begin_inverse(TokenSums& products) {
        decay(products, warp, shared.factors.key_row);
        store_to_invert(products);
        __syncwarp();
    }
    __device__ __forceinline__ void prepare(int chunk) {
        refresh();
        const Tile* keys = shared.key[chunk % kConfig.key_stages];
        const auto issue_early = [&] {
            if (kConfig.key_stages > 1) issue_scalar_loads(chunk + 1);
        };
        const int score_row_block =
            kBlocks - 1 - warp % kInverseWarps;  // warps with few blocks of A have many blocks of scores
        TokenSums products;
        if constexpr (kConfig.warps == kInverseWarps) {
            compute_factors(keys);
            issue_early();
            if (kConfig.key_stages > 1) load_keys(chunk + 1);
            multiply(products, keys, warp, keys);
            __syncthreads();  // the factors are complete
            begin_inverse(products);
            refresh();
            form_scores(products, score_row_block, keys);
            refresh();
            invert_chunk(shared.inverse, warp, [] { __syncthreads(); }, lane);
            __syncthreads();  // all warps have read the inverse
            refresh();
            round_inverse(warp);
        } else if (warp < kInverseWarps) {
            multiply(products, keys, warp, keys);
            named_barrier_sync(kConfig.threads(), kFactorsReady);
            begin_inverse(products);
            refresh();
            invert_chunk(shared.inverse, warp, [] { named_barrier_sync(kInverseWarps * 32, kInverseWarpsBarrier); }, lane);
            named_barrier_sync(kConfig.threads(), kInverseReady);
        } else {  // scores take less time than the inverse, so these warps compute the factors for both
            compute_factors(keys);
            named_barrier_sync(kConfig.threads(), kFactorsReady);
            issue_early();
            form_scores(products, score_row_block, keys);
            if (kConfig.key_stages > 1) load_keys<kScoreThreads>(chunk + 1);
        }
    }
    // With eight warps, those of the scores round the inverse: they have called apply_state before it is complete, and the
    // others call it afterwards.
    __device__ __forceinline__ void finish() {
        if (kConfig.warps == kInverseWarps || warp < kInverseWarps) return;
        named_barrier_sync(kConfig.threads(), kInverseReady);
        refresh();
        round_inverse(warp - kInverseWarps);
    }
};

}  // namespace gdn_cuda::gdn
