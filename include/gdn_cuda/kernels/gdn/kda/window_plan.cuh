// Windows of Kimi Delta Attention by chunks, for host and device: which chunks a pair of launches prepares and applies. They
// bound the memory for records.
//
// All chunks of a call are in one order, by rounds: the first chunk of every sequence, then every second one, and so on, those
// of longer sequences first. A window is some of them in this order, so all sequences advance together. A sequence of no tokens
// has a chunk without tokens. Positions of padded sequences' chunks are arithmetic; those of packed ones are in tables
// (gdn/kda_order).
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

struct KdaChunkPlace {
    int sequence_and_one;  // 0: no chunk has this position
    int chunk;
};
struct KdaWindow {
    const int* positions;         // by first_kda_chunk + chunk, where sequences are packed; else nullptr
    const KdaChunkPlace* places;  // by position, likewise
    int first, count;             // positions
    bool is_last;
};
// The call of a window. With it, kda_prepare's record is a position in the window.
struct KdaWindowCall : GdnCall {
    KdaWindow window;
};

// Where a packed sequence begins in the table of positions: two sequences never share an entry.
GDN_HOST_DEVICE constexpr int first_kda_chunk(i64 start, int sequence) {
    return static_cast<int>(start / kChunk) + sequence;
}

}  // namespace gdn_cuda::gdn
