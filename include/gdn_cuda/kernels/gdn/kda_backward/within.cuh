// A channel's gradients of keys, queries and logarithms of decays from a chunk's tokens: from the state before it, from the
// gradient of the state after it, and from pairs of tokens.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

// Those of logarithms of decays are in shared memory, decay(token): in registers they would be too many beside the others.
struct KdaChannelGradients {
    float query[kKdaTokens] = {}, key[kKdaTokens] = {};

    // products(which, i): dO S, in whose place gradients of decays come, Y S and R E; beta(i); kept: of S E, summed over the
    // values.
    template <class Products, class Beta, class Decay>
    __device__ __forceinline__ void add_states(const KdaChannel& x, float scale, float kept, Products&& products, Beta&& beta,
                                               Decay&& decay) {
        float product = 1.f;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            product *= x.decay[i];
            const float to_query = scale * product * products(0, i), to_key = beta(i) * product * products(1, i);
            query[i] += to_query;
            key[i] -= to_key;
            decay(i) = x.query[i] * to_query - x.key[i] * to_key;
        }
        const float through = product == 0.f ? 0.f : product * kept;
        float after = 0.f, since[kKdaTokens];
        product = 1.f;
#pragma unroll
        for (int i = kKdaTokens - 1; i >= 0; --i) {
            decay(i) = after += decay(i);
            const float to_key = beta(i) * product * products(2, i);
            key[i] += to_key;
            since[i] = x.key[i] * to_key;
            product *= x.decay[i];
        }
        float before = through;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            decay(i) += before;
            before += since[i];
        }
    }
    // Pairs of tokens in different halves of groups of 2 * kHalf.
    template <int kHalf, class Decay>
    __device__ __forceinline__ void add_level(const KdaChannel& x, const KdaTokenGradients& gradients, Decay&& decay) {
#pragma unroll
        for (int first = 0; first < kKdaTokens; first += 2 * kHalf) {
            const KdaGroup<kHalf> group(x.decay, first);
            float lower[kHalf], to_lower[kHalf] = {}, crossing[kHalf];
#pragma unroll
            for (int j = 0; j < kHalf; ++j) lower[j] = group.backwards[j] * x.key[first + j];
#pragma unroll
            for (int i = 0; i < kHalf; ++i) {
                const int upper = first + kHalf + i;
                const float upper_query = group.forwards[i] * x.query[upper], upper_key = group.forwards[i] * x.key[upper];
                float to_query = 0.f, to_key = 0.f;
#pragma unroll
                for (int j = 0; j < kHalf; ++j) {
                    const KdaTokenGradients::Pair each = gradients.at[upper][first + j];
                    to_query = fmaf(each.query, lower[j], to_query);
                    to_key = fmaf(each.key, lower[j], to_key);
                    to_lower[j] = fmaf(each.query, upper_query, fmaf(each.key, upper_key, to_lower[j]));
                }
                query[upper] = fmaf(group.forwards[i], to_query, query[upper]);
                key[upper] = fmaf(group.forwards[i], to_key, key[upper]);
                crossing[i] = fmaf(upper_query, to_query, upper_key * to_key);
            }
            float after = 0.f, before = 0.f;
#pragma unroll
            for (int i = kHalf - 1; i >= 0; --i) decay(first + kHalf + i) += after += crossing[i];
#pragma unroll
            for (int j = 0; j < kHalf; ++j) {
                key[first + j] = fmaf(group.backwards[j], to_lower[j], key[first + j]);
                decay(first + j) += before;
                before = fmaf(lower[j], to_lower[j], before);
            }
        }
    }
    template <class Decay>
    __device__ __forceinline__ void add_pairs(const KdaChannel& x, const KdaTokenGradients& gradients, Decay&& decay) {
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            const float own = gradients.at[i][i].query;
            query[i] = fmaf(own, x.key[i], query[i]);
            key[i] = fmaf(own, x.query[i], key[i]);
        }
        add_level<8>(x, gradients, decay);
        add_level<4>(x, gradients, decay);
        add_level<2>(x, gradients, decay);
        add_level<1>(x, gradients, decay);
    }
};

}  // namespace gdn_cuda::gdn
