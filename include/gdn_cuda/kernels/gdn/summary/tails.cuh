// How the summaries of a call are shared among blocks; for host and device.
//
// Of a head that decays fast only its tail counts, the chunks that still matter at the end of its sequence (gdn/summary_gates,
// gdn/summary_tails, gdn/summary_keys). A long tail is split into segments, which gdn/summary computes at once and
// gdn/summary_fold puts together (gdn/summary_segments). Both depend on the head's own tokens alone, so that its bits are the
// same in every batch.
//
// The gradient of the state before a sequence comes from a chain that runs from the last chunk to the first, by
// gdn/backward_chain. Its tail is where the sequence begins. Chunks are counted in the chain's order.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

// A part of a tail: chunks [first, last) of a sequence and value head, which are a pair. A tail's first segment is computed in
// place of the pair's summary, the others beside it.
struct SummarySegment {
    int sequence, head, first, last;
    int result;  // in ListedSegments::results; -1: a first segment
};
// What gdn/summary_fold reads of a pair: its segments, where the results of those after the first begin, and the chunk where
// its tail begins.
struct SummaryTail {
    int segments, first_result, first_chunk;
};
// What a kernel that computes segments reads and writes beside its tokens. The states before parts are the call's `initial`,
// contiguous, and a pair's L, with M below, goes to `last`.
struct ListedSegments {
    const SummarySegment* segments = nullptr;
    const int* count = nullptr;
    float* results = nullptr;  // L above M
    int value_tiles = 0;       // blocks of rows of L; those of M follow
    bool transition = false;   // whether M is wanted
};

// Segments of a tail of so many chunks. A segment takes 1.7 us a chunk on an H200, a fold 0.8 to 2 us, so that their sum is
// least where there are about as many segments as chunks in one; but M, which only folds need, doubles the work.
constexpr int kShortestSummarySegment = 24, kMostSummarySegments = 32;
GDN_HOST_DEVICE constexpr int summary_segments_of(int chunks) {
    if (chunks < 2 * kShortestSummarySegment) return chunks > 0;
    int count = 2;
    while (count < kMostSummarySegments && 6 * count * count < 5 * chunks && (count + 1) * kShortestSummarySegment <= chunks)
        ++count;
    return count;
}

// log2 of what a product over a tail may be above what the gates alone say, where keys let states grow.
constexpr float kGrowthLog2 = 4.f;

struct SummaryTailsConfig {
    int warps;

    constexpr bool operator==(const SummaryTailsConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct SummaryTailsArgs {
    GdnCall call;
    bool backward;   // the chain runs from the last chunk to the first
    float* growths;  // (heads, places): what gates multiply a state by in each chunk, in log2; places: of chunks, sequence
                     // after sequence. Chunks past them, where sequences overlap (varlen.cuh), multiply by 1
    i64 places;
    int* first;      // of each pair: the chunk where its tail begins, as its gates say
    float* by_keys;  // (pairs, slices): what keys add to that in a slice of the tail; nullptr: keys have norms of 1
    int slices;

    SummarySegment* segments;  // a first one for each pair, and at most most_results others
    int* count;                // how many
    SummaryTail* tails;        // of each pair
    int most_results;
};

struct SummaryKeysConfig {
    int warps;
    DType io;

    constexpr bool operator==(const SummaryKeysConfig&) const = default;

    GDN_FIELDS(warps, io)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct SummaryFoldConfig {
    int columns, rows;  // of a block

    constexpr bool operator==(const SummaryFoldConfig&) const = default;

    GDN_FIELDS(columns, rows)

    static constexpr int kParts = 4;  // threads that share a column
    GDN_HOST_DEVICE constexpr int threads() const { return kParts * columns; }
};
struct SummaryFoldArgs {
    RecurrentStates state, out;
    const float* results;
    const SummaryTail* tails;
    int heads, dv, padded_dv, dk;  // padded_dv: rows of L in whole blocks, before those of M
};

}  // namespace gdn_cuda::gdn
