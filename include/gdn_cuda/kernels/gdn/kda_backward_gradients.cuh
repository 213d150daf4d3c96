// gdn/kda_backward_gradients: gradients of queries, keys, betas and gates of chunks of 16 tokens of Kimi Delta Attention, on
// the tensor cores of any GPU from sm_80 on. What the chains hand over is all that crosses chunks (KdaBackwardHandover), so
// chunks are independent. D_ij: the product of decays of tokens j < s <= i, of each channel; gamma_i from the chunk's start,
// kappa_j to its end, Gamma of all.
//
//     dP_ij = scale beta_j dO_i.R_j, i >= j        U_ij = -beta_i beta_j Y_i.R_j, i > j        dbeta_i = Y_i.R_i
//     dq_i = scale gamma_i (dO S)_i + sum of dP_ij k_j D_ij over j
//     dk_i = kappa_i beta_i (R E)_i - gamma_i beta_i (Y S)_i + sum of U_ij k_j D_ij over j + sum of (dP_ji q_j + U_ji k_j) D_ji
//     dg_t = what of this carries a decay across token t, times q_i, k_i or k_j: sums over i >= t and j < t; + Gamma sum of E S
//
// A block takes a chunk and a key head, a thread a channel of the key. Its value heads follow one another: products that sum
// over values by MMAs, slab by slab (slabs.cuh), then, by channel and in fp32, sums over pairs of tokens (within.cuh). R is two
// 16-bit parts. Every term of dg carries the decay across its token: a reset has a gradient of exactly 0, and nothing cancels.
// Between value heads of one key head, gradients of queries and keys are kept where the records of the first two were.
//
// Four blocks of 128 threads on a multiprocessor: keys and queries are in shared memory beside their products, and pairs of
// tokens far apart are added first, as fewer gradients exist then.
//
// Bound: memory, S and E, 2 dk dv elements for 16 tokens (estimated).
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/results.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/slabs.cuh>

namespace gdn_cuda::gdn {

template <KdaBackwardConfig kConfig>
struct KdaChunkGradients {
    using Io = Storage<kConfig.io>;
    using Record = KdaBackwardRecord<kConfig.head_k>;

    KdaBackwardGradientsPlan<kConfig.head_k>& shared;
    const KdaBackwardGradientsArgs& args;
    const KdaPlace& place = shared.place;

    __device__ __forceinline__ const GdnCall& call() const { return args.call; }
    // Computed where they are used rather than kept in registers.
    __device__ __forceinline__ static int own_thread() { return opaque(static_cast<int>(threadIdx.x)); }
    __device__ __forceinline__ i64 key_head() const { return args.first_key_head + i64{blockIdx.y}; }
    __device__ __forceinline__ i64 first_head() const { return key_head() * call().heads_per_key; }
    // The element of a contiguous tensor (sequence, token, head).
    __device__ __forceinline__ i64 scalar_at(int token, i64 head) const {
        return (place.sequence * call().tokens + place.first + token) * call().heads + head;
    }
    __device__ __forceinline__ i64 index_of(int i) const {
        return (i64{blockIdx.y} * call().heads_per_key + i) * args.from.chunks + blockIdx.x;
    }
    __device__ __forceinline__ Record& record_of(int i) const { return static_cast<Record*>(args.from.records)[index_of(i)]; }
    __device__ __forceinline__ void run() const {
        copy_kda_rows<kConfig.threads()>(shared.rows.key, call().key, place, key_head(), call().dk);
        copy_kda_rows<kConfig.threads()>(shared.rows.query, call().query, place, key_head(), call().dk);
#pragma unroll 1
        for (int i = 0; i < call().heads_per_key; ++i) {
            load_scalars(record_of(i));  // the products' barriers follow
            add_head(i);
        }
    }

  private:
    __device__ __forceinline__ void load_scalars(const Record& record) const {
        const int thread = own_thread();
        if (thread >= kKdaTokens) return;
        shared.beta[thread] = record.beta[thread];
        shared.key_norm[thread] = record.key_norm[thread];
        shared.query_norm[thread] = record.query_norm[thread];
    }
    __device__ __forceinline__ void multiply_values(i64 head, i64 index) const {
        const Rows& rows = args.output_gradient;
        KdaSlabProducts<kConfig> products(shared);
        products.run(
            args, index,
            static_cast<const Io*>(rows.data) + place.sequence * rows.batch + place.first * rows.token + head * rows.head,
            place.tokens);
        products.store();
        products.for_each_token_product([&](bool by_error, int row, int column, float sum) {
            if (by_error && row == column) shared.own[row] = sum;
            float gradient = shared.beta[column] * (by_error ? -shared.beta[row] : call().scale) * sum;
            if (row < column || (by_error && row == column)) gradient = 0.f;
            (by_error ? shared.tokens.at[row][column].key : shared.tokens.at[row][column].query) = gradient;
        });
    }
    // By a thread a token.
    __device__ __forceinline__ void store_beta_gradients(i64 head) const {
        const int thread = own_thread();
        if (thread >= place.tokens || args.beta_gradient.data == nullptr) return;
        store_float(args.beta_gradient, scalar_at(thread, head),
                    beta_gradient(call(), place, thread, head, shared.own[thread]));
    }
    __device__ __forceinline__ void add_head(int i) const {
        const i64 head = first_head() + i;
        multiply_values(head, index_of(i));
        KdaChannel x(call());
        const KdaGates given(call(), place, x.tokens_of(place), head, x.channel);
        __syncthreads();
        store_beta_gradients(head);
        const auto product = [&](int which, int token) -> float& { return shared.products.values[which][token][x.channel]; };
        const auto gate = [&](int token) -> float& { return product(3, token); };
        float gates[kKdaTokens];
        given.convert(gates);
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token) gate(token) = gates[token];
        x.find_decays(call(), gates, x.tokens_of(place), x.rate_log_of(call(), head));
        constexpr int kHalf = kKdaTokens / 2;
        load_rows<0>(x.key, shared.rows.key, shared.key_norm, x.channel);
        load_rows<kHalf>(x.key, shared.rows.key, shared.key_norm, x.channel);
        load_rows<kHalf>(x.query, shared.rows.query, shared.query_norm, x.channel);
        KdaChannelGradients gradients;
        gradients.start(x, shared.tokens);
        load_rows<0>(x.query, shared.rows.query, shared.query_norm, x.channel);
        gradients.add_states(
            x, call().scale, 0.f, [&](float decay) { return decay == 0.f ? 0.f : decay * shared.kept[x.channel]; }, product,
            [&](int token) { return shared.beta[token]; });
        gradients.add_rest(x, shared.tokens, product, [&](int token, float gradient) { product(0, token) = gradient; });
        store_gate_gradients(x, head, [&](int token) { return product(0, token); }, gate);
        if (!add_other_heads(i, x, gradients)) return;
        if (call().qk_norm) {
            pass_kda_norms(
                x, gradients, shared.dots, shared.query_norm, shared.key_norm, own_thread(), [] { __syncthreads(); },
                [](int, float sum) { return sum; });
        }
        store_gradients(x, gradients);
    }
    // The rows of half of the tokens.
    template <int kFirst>
    __device__ __forceinline__ static void load_rows(float (&to)[kKdaTokens],
                                                     const unsigned short (&rows)[kKdaTokens][kConfig.head_k],
                                                     const float (&norms)[kKdaTokens], int channel) {
#pragma unroll
        for (int i = kFirst; i < kFirst + kKdaTokens / 2; ++i) to[i] = norms[i] * to_float(rows[i][channel], kConfig.io);
    }
    // From those of logarithms of decays.
    template <class Decay, class Gate>
    __device__ __forceinline__ void store_gate_gradients(const KdaChannel& x, i64 head, Decay&& decay, Gate&& gate) const {
        if (!x.exists || args.gate_gradient.data == nullptr) return;
        const KdaGateSums sums = store_kda_gate_gradients(call(), x, head, place.tokens, args.gate_gradient,
                                                          scalar_at(0, head) * call().dk + x.channel,
                                                          static_cast<i64>(call().heads) * call().dk, decay, gate);
        if (args.sums == nullptr) return;
        const i64 at = (i64{blockIdx.x} * call().heads + head) * call().dk + x.channel;
        args.sums[at] = sums.A_log;
        args.sums[args.from.chunks * call().heads * call().dk + at] = sums.dt_bias;
    }
    // Adds what earlier value heads of this key head have; false if later ones follow.
    __device__ __forceinline__ bool add_other_heads(int i, const KdaChannel& x, KdaChannelGradients& gradients) const {
        if (call().heads_per_key == 1) return true;
        static_assert(2 * sizeof(Record::key_in) >= sizeof(float[kKdaTokens][kConfig.head_k]));  // key_in and key_out
        float *const query = reinterpret_cast<float*>(&record_of(0)) + x.channel, *const key =
                                                                                      reinterpret_cast<float*>(&record_of(1)) +
                                                                                      x.channel;
        if (i > 0) {
#pragma unroll
            for (int token = 0; token < kKdaTokens; ++token) {
                gradients.query[token] += query[token * kConfig.head_k];
                gradients.key[token] += key[token * kConfig.head_k];
            }
        }
        if (i + 1 == call().heads_per_key) return true;
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token) {
            query[token * kConfig.head_k] = gradients.query[token];
            key[token * kConfig.head_k] = gradients.key[token];
        }
        __syncthreads();  // no thread reads the products any more
        return false;
    }
    // By way of shared memory: a thread has a channel, and stores vectors of them.
    __device__ __forceinline__ void store_gradients(const KdaChannel& x, const KdaChannelGradients& gradients) const {
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            shared.rows.query[i][x.channel] = rounded_bits(gradients.query[i], kConfig.io);
            shared.rows.key[i][x.channel] = rounded_bits(gradients.key[i], kConfig.io);
        }
        __syncthreads();
        store_rows(args.query_gradient, shared.rows.query);
        store_rows(args.key_gradient, shared.rows.key);
    }
    __device__ __forceinline__ void store_rows(const Rows& rows,
                                               const unsigned short (&from)[kKdaTokens][kConfig.head_k]) const {
        const unsigned thread = opaque(threadIdx.x);
        constexpr int kVectors = kConfig.head_k / 8;
        Io* const to =
            static_cast<Io*>(rows.data) + place.sequence * rows.batch + place.first * rows.token + key_head() * rows.head;
#pragma unroll
        for (int i = 0; i < kKdaTokens; i += kConfig.threads() / kVectors) {
            const int token = i + thread / kVectors, column = thread % kVectors * 8;
            if (token < place.tokens && column < call().dk)
                *reinterpret_cast<uint4*>(to + token * rows.token + column) =
                    *reinterpret_cast<const uint4*>(&from[token][column]);
        }
    }
};

template <KdaBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.gradient_blocks())
    kda_backward_gradients(const __grid_constant__ KdaBackwardGradientsArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<KdaBackwardGradientsPlan<kConfig.head_k>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    KdaPlace place;
    if (!find_kda_place(args.call, blockIdx.x, place)) return;
    if (threadIdx.x == 0) shared.place = place;
    __syncthreads();
    KdaChunkGradients<kConfig>{shared, args}.run();
}

}  // namespace gdn_cuda::gdn
