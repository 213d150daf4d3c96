// What the role that forms k k^T does with it, in registers.
#pragma once

#include <gdn_cuda/kernels/chunked/factors.cuh>
#include <gdn_cuda/kernels/chunked/half_inverse.cuh>

namespace gdn_cuda::gdn {

struct KeyProducts : HalfInverse {
    // With norms: the diagonal of k k^T has their squares. Four lanes hold a row; one of them has its diagonal element.
    template <bool kHalf, class Factors>
    __device__ __forceinline__ void compute_key_exponents(const float (&products)[32], Factors& factors) const {
        // By selections alone: ptxas serialises wgmmas whose accumulators are read after a branch.
        float squares[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float x = opaque(g % 2 == 0 ? products[i / 2 * 8 + i % 2 * 6] : products[i / 2 * 8 + i % 2 * 6 + 1]);
            if (i / 2 == warp) squares[i % 2] = x;
        }
        if (t != g / 2) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int token = 16 * warp + g + 8 * i;
            const float log_norm = log_inverse_norm(squares[i]);
            store_key_exponents<kHalf>(factors, token, log_norm);
            factors.key_scale[token] = log_norm;  // scores replaces it by the scale
            if constexpr (kHalf) factors.key_row[token] = exp2_fast(log_norm);
        }
    }

    // Products of keys times their inverse norms.
    __device__ __forceinline__ void normalize(float (&products)[32], const float (&norms)[kChunk]) const {
        const float row[2] = {norms[16 * warp + g], norms[16 * warp + g + 8]};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if (n / 2 > warp) break;
            const float2 column = pair_at(&norms[8 * n + 2 * t]);
#pragma unroll
            for (int i = 0; i < 4; ++i) products[4 * n + i] *= row[i / 2] * (i % 2 == 0 ? column.x : column.y);
        }
    }
};

}  // namespace gdn_cuda::gdn
