// Kimi Delta Attention by chunks: gdn/kda_prepare, then gdn/kda_own, for one window of chunks after another; or both at once,
// in gdn/kda_ahead, for each window.
#pragma once

#include "../chunked/launch.hpp"
#include "kda_ahead.hpp"
#include "kda_fold.hpp"
#include "kda_order.hpp"
#include "kda_own.hpp"
#include "kda_prepare.hpp"
#include "kda_window.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {

// Positions of chunks (kda/window.cuh): how many a call has, at most where sequences are packed.
inline int64_t kda_positions(const Sequences& sequences) {
    return sequences.packed() ? sequences.tokens / kChunk + sequences.count : sequences.count * chunks_in(sequences.tokens);
}
// How a call is split: positions of a window (GDN_KDA_WINDOW, or as many as memory is to hold records of), and chunks of a
// segment at most (GDN_KDA_SEGMENTS, or by kda_segments.hpp), 0: sequences are not split. ahead: without segments
// (GDN_KDA_AHEAD, or by kda_ahead_model.hpp).
struct KdaSplit {
    int window, segment;
    KdaAheadSplit ahead;
};
// deterministic: no segments, as their number depends on the batch.
KdaSplit kda_split(const Prepared& prepared, bool deterministic, const Target& target);

// In global memory. Records and flags are (head, position in the window).
struct KdaWorkspace {
    KdaRecord* records;
    unsigned* flags;
    int* positions;         // where sequences are packed, a chunk's position
    KdaChunkPlace* places;  // zeros before
    float* carried;         // where final states are not fp32
    float* segments;        // KdaSegments::states
    unsigned* taken;        // two words: work tiles that blocks of gdn/kda_own have taken
    unsigned* counters;     // KdaAheadArgs::counters
};
struct KdaWorkspaceSize {
    int64_t window = 0, positions = 0, carried = 0, segments = 0;  // carried, segments: elements
    int heads = 0;

    int64_t bytes() const;
    KdaWorkspace at(void* memory) const;
};
KdaWorkspaceSize kda_workspace(const Prepared& prepared, const KdaSplit& split);

// Whether gdn/kda_prepare takes the gates: pairs of contiguous channels, tokens near one another.
bool takes_kda_gates(const Prepared& prepared);
// Whether the kernels take the call: rows that TMA tiles and that start on 16 bytes, dk up to 128, and gates of contiguous
// channels.
bool fits_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors);

struct KdaLaunches {
    bool prepares = true, owns = true;
};
void run_kda_chunks(const Prepared& prepared, const PrefillTensors& tensors, const KdaWorkspace& workspace,
                    const KdaSplit& split, const Target& target, const KdaLaunches& launches = {});

}  // namespace gdn_cuda::gdn
