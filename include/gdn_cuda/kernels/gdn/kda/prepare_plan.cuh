// Configuration, shared memory and arguments of gdn/kda_prepare, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/triangle.cuh>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

struct KdaPrepareConfig {
    DType io, gate;  // gate: f32, or io

    constexpr bool operator==(const KdaPrepareConfig&) const = default;

    GDN_FIELDS(io, gate)

    static constexpr int kQuarters = 4, kQuarterTokens = kChunk / kQuarters;  // a thread has two channels of a quarter
    GDN_HOST_DEVICE static constexpr int threads() { return kQuarters * kKdaHeadK / 2; }
};

struct KdaPreparePlan {
    // Operands of 64 tokens, one use after another (kda_prepare.cuh):
    //     levels 32 and 16    keys | keys | queries, the upper halves of each
    //     diagonal blocks     left keys | right keys | left queries
    //     levels 8 and 4, then 2 and 1, as the first
    //     the record's        K_in | the keys of Z, then Z | Q_in
    struct Operands {
        SwizzledTile key[kKdaTiles], other_key[kKdaTiles], query[kKdaTiles];
    };
    // T r and P, each rounded and its residual. P' replaces P, and the residuals of Z and P' the others.
    struct Matrices {
        SwizzledTile inverse[2], scores[2];
    };
    Operands operands;
    Matrices matrices;
    TriangleBlock triangle[kTriangleBlocks];
    KdaFactors factors;
    float totals[KdaPrepareConfig::kQuarters][kKdaHeadK];  // products of a quarter's decays
    float beta[kChunk];
    float sums[3][kKdaTiles][kChunk];                          // of a token's channels: squares of keys, of queries, products
    alignas(8) bool resets[KdaPrepareConfig::threads() / 32];  // by warp, whether one of its decays is 0
    alignas(4) bool cancels[kChunk / 16];                      // by column of blocks, whether T has an entry that cancels
};
static_assert(sizeof(KdaPreparePlan) <= 112 * 1024);  // two blocks a multiprocessor

struct KdaPrepareArgs {
    GdnCall call;
    KdaRecord* records;  // (head, record)
    unsigned* flags;     // the same
    int per_head;        // records
};

}  // namespace gdn_cuda::gdn
