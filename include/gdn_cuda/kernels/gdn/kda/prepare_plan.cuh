// Configuration, shared memory and arguments of gdn/kda_prepare, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/triangle.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/backward/handover.cuh>
#include <gdn_cuda/kernels/gdn/kda/training_record.cuh>
#include <gdn_cuda/kernels/gdn/kda/window_plan.cuh>

namespace gdn_cuda::gdn {

struct KdaPrepareConfig {
    DType io, gate;       // gate: f32, or io
    bool trains = false;  // KdaTrainingRecords of all chunks, rather than KdaRecords of a window

    constexpr bool operator==(const KdaPrepareConfig&) const = default;

    GDN_FIELDS(io, gate, trains)

    static constexpr int kQuarters = 4, kQuarterTokens = kChunk / kQuarters;  // a thread has two channels of a quarter
    GDN_HOST_DEVICE static constexpr int threads() { return kQuarters * kKdaHeadK / 2; }
};

// What a warp has found in its decays.
enum KdaFindings : unsigned {
    kFoundZero = 1,
    // No reciprocals that may scale operands: of the decays of half of a quarter, of a quarter, of half of the chunk.
    kFoundVeryFast = 2,
    kFoundFast = 4,
    kFoundMedium = 8,
    kFoundLarge = 16,  // what becomes kKdaOverflows
};

// A chunk of a value head.
struct KdaChunk {
    int sequence, head, key_head;
    i64 first;   // token, along the token stride
    int tokens;  // up to 64
};

struct KdaPreparePlan {
    // Operands of 64 tokens, one use after another (kda_prepare.cuh):
    //     the chunk as loaded   keys | - | queries
    //     levels 32 and 16    keys | keys | queries, the upper halves of each
    //     diagonal blocks     left keys | right keys | left queries
    //     levels 8 and 4, then 2 and 1, as the first
    //     the record's        K_in, then Z | the keys of Z | Q_in
    // Where decays are slow, the chunk's scores come from left keys | right keys | left queries about its middle, which then
    // are the record's.
    struct Operands {
        SwizzledTile key[kKdaTiles], other_key[kKdaTiles], query[kKdaTiles];
    };
    // T r and P, each rounded and its residual; then the residuals of Z and P'.
    struct Matrices {
        SwizzledTile inverse[2], scores[2];
    };
    Operands operands;
    Matrices matrices;
    union {
        TriangleBlock triangle[kTriangleBlocks];
        SwizzledTile products;  // P'
    };
    KdaFactors factors;
    float totals[KdaPrepareConfig::kQuarters][kKdaHeadK];  // products of a quarter's decays
    float update_scale[kKdaHeadK];                         // for columns of Z, whose keys are the right keys about the middle
    float beta[kChunk];
    float query_key[kChunk];                                              // q.k of each token, where decays are fast
    alignas(8) unsigned char findings[KdaPrepareConfig::threads() / 32];  // KdaFindings of each warp
    unsigned cancels[kChunk / 16];  // by column of blocks, whether T has an entry that cancels
    unsigned long long tiles_full;  // keys and queries are there
    KdaChunk chunk;                 // for code that rarely runs, which would cost registers elsewhere
};
static_assert(sizeof(KdaPreparePlan) <= 112 * 1024);  // two blocks a multiprocessor

struct KdaPrepareArgs {
    TensorMap query, key;  // (d, head, token, batch)
    KdaWindowCall call;
    KdaRecord* records;  // (head, record)
    unsigned* flags;     // the same
    unsigned* taken;     // KdaOwnArgs's, become 0
    int per_head;        // records, as many as the window has positions

    // With KdaPrepareConfig::trains, in place of window, records, flags and taken. per_head: its chunks.
    BackwardHandover to;
};

}  // namespace gdn_cuda::gdn
