// What gdn/kda_prepare hands over of a chunk of 64 tokens where gradients are wanted, for host and device: for the chains of
// the backward (gdn/backward_chain) and for gdn/kda_gradients.
//
// With decays a_s (one a channel), g_i = a_1 .. a_i, d_j = a_(j+1) .. a_64 (products within the chunk), D_ij = a_(j+1) .. a_i,
// r inverse norms of keys, s those of queries times the scale, and T = (I + diag(beta) N)^-1 diag(beta), where N_ij = r_i r_j
// sum of k_i k_j D_ij over channels, i > j:
//
//     X = V - r K_in S^T         V' = T X = beta R        S <- S diag(g_64) + V'^T r K_out
//     dV' = r (P^T s dO + K_out E^T)    dV = T^T dV'      E <- E diag(g_64) + dO^T s Q_in - dV^T r K_in
//
// A beta of 0, and those past the sequence's end, count as least_beta, so that R = V' / beta. Keys, queries and P past the end
// are 0, decays 1, and norms whatever zeros have.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/record.cuh>

namespace gdn_cuda::gdn {

struct alignas(16) KdaTrainingFactors {
    float decay[kKdaHeadK];                      // g_64, of channels; 1 past dk
    float key_norm[kChunk], query_norm[kChunk];  // r; s without the scale
    float beta[kChunk];                          // never 0
    unsigned cancels;                            // whether entries of T cancel: then more products take two parts
    unsigned unused[3];
};
// Matrices of tokens are row-major (row token, column token), with zeros above the diagonal: rounded, and the rounding
// residual.
struct KdaTrainingRecord {
    SwizzledTile key_in[kKdaTiles], key_out[kKdaTiles], query_in[kKdaTiles];  // g k, d k, g q: (token, channel), without norms
    SwizzledTile inverse[2];                                                  // r_i T_ij: r of the row's token
    SwizzledTile scores[2];  // P_ij = sum of q_i k_j D_ij, i >= j, without norms
    KdaTrainingFactors factors;
};
static_assert(sizeof(KdaTrainingFactors) == 1296 && sizeof(KdaTrainingRecord) == 82 * 1024);

}  // namespace gdn_cuda::gdn
