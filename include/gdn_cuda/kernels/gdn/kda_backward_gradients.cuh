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
// 16-bit parts. Gradients of queries and keys are summed over the value heads in shared memory: with those in registers the
// products' addresses would spill. Every term of dg carries the decay
// across its token: a reset has a gradient of exactly 0, and nothing cancels.
//
// Bound: memory, S and E, 2 dk dv elements for 16 tokens (estimated).
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/slabs.cuh>
#include <gdn_cuda/kernels/gdn/kda_backward/within.cuh>
#include <gdn_cuda/kernels/recurrence/decay_slopes.cuh>

namespace gdn_cuda::gdn {

template <KdaBackwardConfig kConfig>
struct KdaChunkGradients {
    using Io = Storage<kConfig.io>;
    using Record = KdaBackwardRecord<kConfig.head_k>;

    KdaBackwardGradientsPlan<kConfig.head_k>& shared;
    const KdaBackwardGradientsArgs& args;
    const KdaPlace& place = shared.place;
    const int thread = static_cast<int>(threadIdx.x);

    __device__ __forceinline__ const GdnCall& call() const { return args.call; }
    // Computed where they are used rather than kept in registers.
    __device__ __forceinline__ i64 key_head() const { return args.first_key_head + i64{blockIdx.y}; }
    __device__ __forceinline__ i64 first_head() const { return key_head() * call().heads_per_key; }
    // The element of a contiguous tensor (sequence, token, head).
    __device__ __forceinline__ i64 scalar_at(int token, i64 head) const {
        return (place.sequence * call().tokens + place.first + token) * call().heads + head;
    }
    __device__ __forceinline__ void load_scalars(const Record& record) const {
        if (thread >= kKdaTokens) return;
        shared.beta[thread] = record.beta[thread];
        shared.key_norm[thread] = record.key_norm[thread];
        shared.query_norm[thread] = record.query_norm[thread];
    }
    __device__ __forceinline__ void store_beta_gradient(int token, i64 head, float gradient) const {
        if (token >= place.tokens || args.beta_gradient.data == nullptr) return;
        if (call().forms.beta_is_logit && gradient != 0.f) {
            const float logit =
                load_float(call().beta.values, scalar_offset(call().beta, place.sequence, place.first + token, head));
            gradient *= call().forms.beta_factor * sigmoid(logit) * sigmoid(-logit);
        }
        store_float(args.beta_gradient, scalar_at(token, head), gradient);
    }
    __device__ __forceinline__ void multiply_values(i64 head, i64 index) const {
        const Rows& rows = args.output_gradient;
        const Io* const outputs =
            static_cast<const Io*>(rows.data) + place.sequence * rows.batch + place.first * rows.token + head * rows.head;
        KdaSlabProducts<kConfig> products(shared.slabs, args);
        products.run(index, outputs, place.tokens);
        products.store(shared.products, shared.kept);
        products.for_each_token_product([&](bool by_error, int row, int column, float sum) {
            if (by_error && row == column) store_beta_gradient(row, head, sum);
            float gradient = shared.beta[column] * (by_error ? -shared.beta[row] : call().scale) * sum;
            if (row < column || (by_error && row == column)) gradient = 0.f;
            (by_error ? shared.tokens.at[row][column].key : shared.tokens.at[row][column].query) = gradient;
        });
    }
    // From those of logarithms of decays. The gates, loaded at once, go by way of shared memory: a loop unrolled for each of
    // their forms would spill.
    template <class Decay, class Gate>
    __device__ __forceinline__ void store_gate_gradients(const KdaChannel& x, i64 head, Decay&& decay, Gate&& gate) const {
        if (!x.exists || args.gate_gradient.data == nullptr) return;
        if (call().channels.form != ChannelGate::log_decay)
            x.load_gates(call(), place, head, [&](int i, float z) { gate(i) = z; });
        float by_rate = 0.f, by_bias = 0.f;
        with_channel_gate(call().channels.form, [&]<ChannelGate kForm>() {
            const float rate_log = x.rate_log_of(call(), head);
            i64 to = scalar_at(0, head) * call().dk + x.channel;
            const i64 step = static_cast<i64>(call().heads) * call().dk;
#pragma unroll 1
            for (int i = 0; i < place.tokens; ++i, to += step) {
                const float dg = decay(i);
                float found = dg;
                if (kForm != ChannelGate::log_decay && dg != 0.f) {
                    const float z = gate(i);
                    if constexpr (kForm == ChannelGate::softplus) {
                        found = dg * log_decay_slope(rate_log, z);
                        by_rate += dg * log_decay(rate_log, z);
                    } else if constexpr (kForm == ChannelGate::bounded) {
                        const BoundedSlopes slopes(rate_log, call().channels.lower_bound, z);
                        found = dg * slopes.by_raw;
                        by_rate += dg * slopes.by_rate_log;
                    } else {
                        found = dg / z;
                    }
                }
                by_bias += found;
                store_float(args.gate_gradient, to, found);
            }
        });
        if (args.sums == nullptr) return;
        const i64 at = (i64{blockIdx.x} * call().heads + head) * call().dk + x.channel;
        args.sums[at] = by_rate;
        args.sums[args.from.chunks * call().heads * call().dk + at] = by_bias;
    }
    // Through the norms: x / |x| has the gradient (dx - x (x.dx)) / |x|, x and dx those of the normalised row.
    __device__ __forceinline__ void pass_norms(const KdaChannel& x, KdaChannelGradients& gradients) const {
        if (!call().qk_norm) return;
        float dots[32];
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            dots[i] = x.query[i] * gradients.query[i];
            dots[kKdaTokens + i] = x.key[i] * gradients.key[i];
        }
        const float dot = transposed_sum<16>(dots);
        shared.dots[thread / 32][thread % 32] = dot;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            float query_dot = 0.f, key_dot = 0.f;
#pragma unroll
            for (int warp = 0; warp < kConfig.warps(); ++warp) {
                query_dot += shared.dots[warp][i];
                key_dot += shared.dots[warp][kKdaTokens + i];
            }
            gradients.query[i] = shared.query_norm[i] * (gradients.query[i] - x.query[i] * query_dot);
            gradients.key[i] = shared.key_norm[i] * (gradients.key[i] - x.key[i] * key_dot);
        }
    }
    __device__ __forceinline__ void store_rows(const Rows& rows, const KdaChannel& x,
                                               const float (&gradients)[kKdaTokens]) const {
        Io* const to = static_cast<Io*>(rows.data) + place.sequence * rows.batch + place.first * rows.token +
                       key_head() * rows.head + x.channel;
        if (!x.exists) return;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i)
            if (i < place.tokens) to[i * rows.token] = from_float<Io>(gradients[i]);
    }
    __device__ __forceinline__ void run() const {
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token)
            shared.query_gradients[token][thread] = shared.key_gradients[token][thread] = 0.f;
#pragma unroll 1
        for (int i = 0; i < call().heads_per_key; ++i) {
            const i64 index = (i64{blockIdx.y} * call().heads_per_key + i) * args.from.chunks + blockIdx.x;
            load_scalars(static_cast<const Record*>(args.from.records)[index]);  // the products' barriers follow
            multiply_values(first_head() + i, index);
            __syncthreads();
            add_head(first_head() + i);
            __syncthreads();  // no thread reads the products any more
        }
        finish();
    }

  private:
    __device__ __forceinline__ void load_keys_and_queries(KdaChannel& x) const {
        x.load_rows<Io>(x.key, call().key, place, key_head());
        x.load_rows<Io>(x.query, call().query, place, key_head());
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token) {
            x.key[token] *= shared.key_norm[token];
            x.query[token] *= shared.query_norm[token];
        }
    }
    __device__ __forceinline__ void add_head(i64 head) const {
        KdaChannel x(call());
        x.load_decays(call(), place, head);
        load_keys_and_queries(x);
        const auto products = [&](int which, int token) -> float& { return shared.products.values[which][token][x.channel]; };
        const auto decay = [&](int token) -> float& { return products(0, token); };
        KdaChannelGradients gradients;
        gradients.add_states(
            x, call().scale, shared.kept[x.channel], products, [&](int token) { return shared.beta[token]; }, decay);
        gradients.add_pairs(x, shared.tokens, decay);
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token) {
            shared.query_gradients[token][x.channel] += gradients.query[token];
            shared.key_gradients[token][x.channel] += gradients.key[token];
        }
        store_gate_gradients(x, head, decay, [&](int token) -> float& { return products(1, token); });
    }
    __device__ __forceinline__ void finish() const {
        KdaChannel x(call());
        load_keys_and_queries(x);
        KdaChannelGradients gradients;
#pragma unroll
        for (int token = 0; token < kKdaTokens; ++token) {
            gradients.query[token] = shared.query_gradients[token][x.channel];
            gradients.key[token] = shared.key_gradients[token][x.channel];
        }
        pass_norms(x, gradients);
        store_rows(args.query_gradient, x, gradients.query);
        store_rows(args.key_gradient, x, gradients.key);
    }
};

template <KdaBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads())
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
