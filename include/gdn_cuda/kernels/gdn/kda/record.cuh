// Kimi Delta Attention by chunks of 64 tokens, for host and device: what a chunk of a value head does to any state, as one
// kernel prepares it in global memory and another applies it.
//
// With decays a_s (one a channel), g_i = a_1 .. a_i, d_j = a_(j+1) .. a_64 (products within the chunk), r inverse norms, and T
// the inverse of the chunk's triangle (chunked/triangle_inverse.cuh), times beta:
//
//     K_in = g k    Q_in = g q    Z = T^T r d k    P' = (q k^T, decayed) r T    X = V - r K_in S^T
//     S <- S diag(g_64) + X^T Z          O = scale r_q (Q_in S^T + P' X)
//
// All are products of decays, never differences of logarithms: any decay in [0, 1] is exact, and 0 is a reset. Where decays are
// slow (kKdaScaled), K_in and Q_in have them from the middle of the chunk on, and S is multiplied by those before.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/hopper/tile.cuh>

namespace gdn_cuda::gdn {

constexpr int kKdaHeadK = 128, kKdaTiles = kKdaHeadK / kTileElements;  // shorter keys are zero-padded

// The factors of a chunk's columns and rows.
struct alignas(16) KdaFactors {
    float decay[kKdaHeadK];    // g_64, of channels
    float middle[kKdaHeadK];   // g_32, if the record is scaled by it
    float key_norm[kChunk];    // r
    float query_norm[kChunk];  // scale r_q
};
struct KdaRecord {
    SwizzledTile key_in[kKdaTiles], query_in[kKdaTiles];
    SwizzledTile update[kKdaTiles], scores;  // Z, P'
    // Rounding residuals, written and read only where entries of T cancel.
    SwizzledTile update_residual[kKdaTiles], scores_residual;
    KdaFactors factors;
};
// Tiles that are always there, in order.
constexpr int kKdaPlainTiles = 3 * kKdaTiles + 1;
static_assert(sizeof(KdaFactors) == 1536 && sizeof(KdaRecord) == 82 * 1024);

// Flags of a record.
enum KdaFlags : unsigned {
    kKdaCancels = 1,    // it has residuals
    kKdaResets = 2,     // a decay is 0
    kKdaScaled = 4,     // factors.middle scales the state
    kKdaOverflows = 8,  // a gate is NaN, or a key or beta is not below kKdaLargest
    kKdaReady = 16,     // it is there: by gdn/kda_ahead, whose owners wait for it
};

constexpr float kKdaLargest = 1e18f;  // 128 products of two smaller values sum to a finite one

}  // namespace gdn_cuda::gdn
