// Segments of Kimi Delta Attention by chunks, for host and device: how the chunks that a sequence has in a window are shared
// among blocks of gdn/kda_own that run at once.
//
// A segment maps a state S to S M + L. One launch takes the first segment of every sequence from its true state, with outputs,
// and of every segment but the first and the last L and M: states from zero, and from the identity with values of zero.
// gdn/kda_fold makes the states after them, and another launch takes all segments but the first.
//
// A slot is a segment's place in memory. A sequence has slots for as many segments as its chunks need at most; packed
// sequences' slots begin where their tokens do, so that two sequences never share one.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct KdaSegments {
    int chunks;        // of a segment at most; 0: sequences are not split
    int per_sequence;  // slots of a padded sequence
    int slots;         // of all sequences
    float* states;     // (slot, head, dv + dk, dk): the state after the segment, or L until the fold; then M
    bool follow;       // the launch takes segments after the first ones

    GDN_HOST_DEVICE int first_slot(bool packed, i64 start, int sequence) const {
        return packed ? static_cast<int>(static_cast<unsigned>(start) / static_cast<unsigned>(chunks * kChunk)) + sequence
                      : sequence * per_sequence;
    }
};

struct KdaFoldConfig {
    int columns, rows;  // of a block

    constexpr bool operator==(const KdaFoldConfig&) const = default;

    GDN_FIELDS(columns, rows)

    static constexpr int kParts = 4;  // threads that share a column
    GDN_HOST_DEVICE constexpr int threads() const { return kParts * columns; }
};

}  // namespace gdn_cuda::gdn
