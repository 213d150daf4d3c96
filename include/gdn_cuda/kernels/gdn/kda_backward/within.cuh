// A channel's gradients of keys, queries and logarithms of decays from a chunk's tokens: from the state before it, from the
// gradient of the state after it, and from pairs of tokens.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/channel.cuh>

namespace gdn_cuda::gdn {

// Sums over pairs of kTokens tokens, for a channel. x: keys, queries and decays. gradients.at[row][column]: gradients of the
// scores q k^T and k k^T.
template <int kTokens>
struct KdaPairSums {
    float query[kTokens], key[kTokens], decay[kTokens];

    // Pairs of tokens in different halves of the group of 2 * kHalf tokens at `first`.
    template <int kHalf, bool kAdds = true, bool kAddsDecays = kAdds>
    __device__ __forceinline__ void add_halves(const auto& x, const auto& gradients, int first) {
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
                const auto each = gradients.at[upper][first + j];
                to_query = fmaf(each.query, lower[j], to_query);
                to_key = fmaf(each.key, lower[j], to_key);
                to_lower[j] = fmaf(each.query, upper_query, fmaf(each.key, upper_key, to_lower[j]));
            }
            query[upper] = sum<kAdds>(group.forwards[i] * to_query, query[upper]);
            key[upper] = sum<kAdds>(group.forwards[i] * to_key, key[upper]);
            crossing[i] = fmaf(upper_query, to_query, upper_key * to_key);
        }
#pragma unroll
        for (int i = kHalf - 1; i >= 0; --i) {
            if (i + 1 < kHalf) crossing[i] += crossing[i + 1];
            decay[first + kHalf + i] = sum<kAddsDecays>(crossing[i], decay[first + kHalf + i]);
        }
        float before = 0.f;
#pragma unroll
        for (int j = 0; j < kHalf; ++j) {
            key[first + j] = sum<kAdds>(group.backwards[j] * to_lower[j], key[first + j]);
            if (j > 0 || !kAddsDecays) decay[first + j] = sum<kAddsDecays>(before, decay[first + j]);
            before = j > 0 ? fmaf(lower[j], to_lower[j], before) : lower[j] * to_lower[j];
        }
    }
    // All pairs in the group of 2 * kHalf tokens at `first`.
    template <int kHalf>
    __device__ __forceinline__ void add_group(const auto& x, const auto& gradients, int first) {
        add_halves<kHalf>(x, gradients, first);
        if constexpr (kHalf > 1) {
            add_group<kHalf / 2>(x, gradients, first);
            add_group<kHalf / 2>(x, gradients, first + kHalf);
        }
    }

  private:
    template <bool kAdds>
    __device__ __forceinline__ static float sum(float x, float before) {
        return kAdds ? before + x : x;
    }
};

// In this order: pairs of tokens in different halves of the chunk, which is first as there are no other gradients yet; states;
// all other pairs.
struct KdaChannelGradients : KdaPairSums<kKdaTokens> {
    // Sums over pairs of tokens in different halves of the chunk; what was there before is overwritten.
    __device__ __forceinline__ void start(const KdaChannel& x, const KdaTokenGradients& gradients) {
        add_halves<kKdaTokens / 2, false>(x, gradients, 0);
    }
    // products(which, i): dO S, Y S and R E, in whose place terms of the decays' gradients come, and gradients of queries and
    // keys in that of Y S and R E until add_rest: in registers they would be too many. beta(i). For all decays: `after`, and
    // before(the product of all decays), which may have terms of tokens after and before these.
    template <class Products, class Beta, class Before>
    __device__ __forceinline__ void add_states(const KdaChannel& x, float scale, float after, Before&& before_of,
                                               Products&& products, Beta&& beta) {
        float product = 1.f;
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            product *= x.decay[i];
            const float to_query = scale * product * products(0, i), to_key = beta(i) * product * products(1, i);
            products(1, i) = i < kKdaTokens / 2 ? to_query : query[i] + to_query;  // no pair has given the lower half one
            key[i] -= to_key;
            products(0, i) = x.query[i] * to_query - x.key[i] * to_key;
        }
        float before = before_of(product);
        product = 1.f;
        forget_memory();
#pragma unroll
        for (int i = kKdaTokens - 1; i >= 0; --i) {
            decay[i] += after += products(0, i);
            const float to_key = beta(i) * product * products(2, i);
            key[i] += to_key;
            products(2, i) = x.key[i] * to_key;
            product *= x.decay[i];
        }
        forget_memory();
#pragma unroll
        for (int i = 0; i < kKdaTokens; ++i) {
            decay[i] += before;
            before += products(2, i);
            products(2, i) = key[i];
        }
    }
    // Calls keep(i, gradient) for logarithms of decays as soon as they are complete.
    template <class Products, class Keep>
    __device__ __forceinline__ void add_rest(const KdaChannel& x, const KdaTokenGradients& gradients, Products&& products,
                                             Keep&& keep) {
        constexpr int kHalf = kKdaTokens / 2;
#pragma unroll
        for (int first = 0; first < kKdaTokens; first += kHalf) {
            forget_memory();
#pragma unroll
            for (int i = first; i < first + kHalf; ++i) {
                const float own = gradients.at[i][i].query;
                query[i] = fmaf(own, x.key[i], products(1, i));
                key[i] = fmaf(own, x.query[i], products(2, i));
            }
            add_group<kHalf / 2>(x, gradients, first);
#pragma unroll
            for (int i = first; i < first + kHalf; ++i) keep(i, decay[i]);
        }
    }
};

}  // namespace gdn_cuda::gdn
