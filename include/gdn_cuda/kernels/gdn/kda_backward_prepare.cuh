// gdn/kda_backward_prepare: what chunks of 16 tokens of Kimi Delta Attention do to any state and to any gradient of a state
// (KdaBackwardRecord), for the passes of the backward. With alpha a token's decays, gamma_i = product of alpha_s, s <= i, and
// kappa_j = product of alpha_s, s > j,
//
//     N_ij = sum over channels of k_i k_j D_ij, i > j     P_ij = scale times that of q_i k_j D_ij, i >= j
//     the inverses of I + diag(beta) N and I + N diag(beta); gamma k, kappa k, scale gamma q; gamma of the last token
//
// A block takes a chunk and a value head, a thread a channel of the key. Decays are products in fp32, never sums of logarithms:
// after a strong gate differences of sums lose digits. Scores: kda_backward/scores.cuh. A decay of 0 makes exact zeros.
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/scores.cuh>

namespace gdn_cuda::gdn {

template <int kHeadK>
struct KdaBackwardPreparePlan {
    static constexpr int kWarps = kHeadK / 32;

    union {
        KdaInputRows<kHeadK> rows;
        KdaScoresPlan<kWarps> scores;
    };
    float dots[kWarps][3][kKdaTokens];  // k.k, q.q and q.k of a token over a warp's channels
    float beta[kKdaTokens], key_norm[kKdaTokens], query_norm[kKdaTokens], own[kKdaTokens];
    float keys[kKdaTokens][kKdaTokens + 1];  // N
};

template <KdaBackwardConfig kConfig>
struct KdaBackwardPreparer {
    using Io = Storage<kConfig.io>;
    using Record = KdaBackwardRecord<kConfig.head_k>;

    KdaBackwardPreparePlan<kConfig.head_k>& shared;
    const GdnCall& call;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

    __device__ __forceinline__ void store_dots(const KdaChannel& x) const {
        float squares[32], products[32];
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            squares[i] = x.key[i] * x.key[i];
            squares[kKdaTokens + i] = x.query[i] * x.query[i];
            products[i] = x.query[i] * x.key[i];
            products[kKdaTokens + i] = 0.f;
        }
        shared.dots[warp][lane / kKdaTokens][lane % kKdaTokens] = transposed_sum<16>(squares);
        const float product = transposed_sum<16>(products);
        if (lane < kKdaTokens) shared.dots[warp][2][lane] = product;
    }
    // By a thread a token, after a barrier.
    __device__ __forceinline__ void store_scalars(const KdaPlace& place, i64 head) const {
        if (thread >= kKdaTokens) return;
        float sums[3] = {};
#pragma unroll
        for (int i = 0; i < kConfig.warps(); ++i)
#pragma unroll
            for (int dot = 0; dot < 3; ++dot) sums[dot] += shared.dots[i][dot][thread];
        const auto norm = [&](float squares) { return call.qk_norm ? inverse_root(squares + kNormEpsilon) : 1.f; };
        float beta = 0.f;
        if (thread < place.tokens) {
            RawGates gates;
            gates.load_beta(call, scalar_offset(call.beta, place.sequence, place.first + thread, head));
            beta = gates.beta_of(call, call.forms);
        }
        const float key_norm = norm(sums[0]), query_norm = norm(sums[1]);
        shared.beta[thread] = beta;
        shared.key_norm[thread] = key_norm;
        shared.query_norm[thread] = query_norm;
        shared.own[thread] = sums[2] * key_norm * query_norm;
    }
    __device__ __forceinline__ void store_scores(Record& record) const {
        const KdaScores<kConfig.warps()> scores{shared.scores};
        for (int element = thread; element < kKdaTokens * kKdaTokens; element += kConfig.threads()) {
            const int row = element / kKdaTokens, column = element % kKdaTokens;
            float score = row == column ? shared.own[row] : 0.f;
            if (row > column) {
                score = scores.at(true, row, column);
                shared.keys[row][column] = scores.at(false, row, column);
            }
            record.scores.values[KdaTokenMatrix::at(row, column)] = call.scale * score;
        }
    }
    // By a warp: a lane has a column of either inverse.
    __device__ __forceinline__ void store_inverses(Record& record) const {
        if (warp > 0) return;
        const int column = lane % kKdaTokens;
        const bool transposed = lane < kKdaTokens;  // of I + diag(beta) N
        float x[kKdaTokens];
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            float sum = 0.f;
#pragma unroll
            for (int m = 0; m < i; ++m) {
                const float scaled = shared.keys[i][m] * (transposed ? shared.beta[i] : shared.beta[m]);
                sum = fmaf(scaled, x[m], sum);
            }
            x[i] = i < column ? 0.f : i == column ? 1.f : -sum;
        }
        float* const to = transposed ? record.inverse_transposed.values : record.inverse.values;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i)
            to[transposed ? KdaTokenMatrix::at(i, column) : KdaTokenMatrix::at(column, i)] = x[i];
    }
    __device__ __forceinline__ void store_rows(Record& record, const KdaChannel& x) const {
        const auto put = [&](unsigned short(&row)[kConfig.head_k], float value) {
            row[x.channel] = static_cast<unsigned short>(pack<kConfig.io>(value, 0.f));
        };
        float product = 1.f;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            product *= x.decay[i];
            put(record.key_in[i], product * x.key[i]);
            put(record.query_in[i], call.scale * product * x.query[i]);
        }
        record.decay[x.channel] = product;
        product = 1.f;
#pragma unroll
        for (int i = kKdaTokens - 1; i >= 0; --i) {
            put(record.key_out[i], product * x.key[i]);
            product *= x.decay[i];
        }
    }
    __device__ __forceinline__ void run(const KdaPlace& place, i64 head, Record& record) const {
        KdaChannel x(call);
        const i64 key_head = head / call.heads_per_key;
        copy_kda_rows<kConfig.threads()>(shared.rows.key, call.key, place, key_head, call.dk);
        copy_kda_rows<kConfig.threads()>(shared.rows.query, call.query, place, key_head, call.dk);
        cp_async_fence();
        const KdaGates given(call, place, x.tokens_of(place), head, x.channel);
        float gates[kKdaTokens];
        given.convert(gates);
        x.find_decays(call, gates, x.tokens_of(place), x.rate_log_of(call, head));
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            x.key[i] = to_float(shared.rows.key[i][x.channel], kConfig.io);
            x.query[i] = to_float(shared.rows.query[i][x.channel], kConfig.io);
        }
        store_dots(x);
        __syncthreads();
        store_scalars(place, head);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            x.key[i] *= shared.key_norm[i];
            x.query[i] *= shared.query_norm[i];
        }
        KdaScores<kConfig.warps()>{shared.scores}.multiply(x);
        __syncthreads();
        store_scores(record);
        __syncthreads();
        store_inverses(record);
        store_rows(record, x);
        if (thread < kKdaTokens) {
            record.beta[thread] = shared.beta[thread];
            record.key_norm[thread] = shared.key_norm[thread];
            record.query_norm[thread] = shared.query_norm[thread];
        }
    }
};

// Threads of a multiprocessor: as many as leave each the registers that it needs, which depends on the architecture.
inline constexpr int kKdaPrepareThreads = kCompiledCapability == 90 ? 768 : kCompiledCapability > 90 ? 512 : 640;

template <KdaBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kKdaPrepareThreads / kConfig.threads())
    kda_backward_prepare(const __grid_constant__ KdaBackwardArgs args) {
    __shared__ KdaBackwardPreparePlan<kConfig.head_k> shared;
    KdaPlace place;
    if (!find_kda_place(args.call, blockIdx.x, place)) return;
    auto* const records = static_cast<KdaBackwardRecord<kConfig.head_k>*>(args.to.records);
    KdaBackwardPreparer<kConfig>{shared, args.call}.run(place, args.first_head + static_cast<i64>(blockIdx.y),
                                                        records[blockIdx.y * args.to.chunks + blockIdx.x]);
}

}  // namespace gdn_cuda::gdn
