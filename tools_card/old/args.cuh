// Arguments of a chunked kernel: tensors, how sequences are split, and what segments hand over.
#pragma once

#include <gdn_cuda/kernels/common/divisor.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

// Segments whose summaries are composed first, counted from the second segment on (chunked/segments.cuh); 1: none.
GDN_HOST_DEVICE constexpr int segments_in_group(int segments) {
    return segments < 14 ? 1 : segments < 17 ? 2 : 3;
}
GDN_HOST_DEVICE constexpr int groups_of(int segments) {
    return segments_in_group(segments) > 1 ? (segments - 4) / segments_in_group(segments) : 0;
}

// Segments of each head of a sequence, where some heads have a slow decay and others do not: slow ones get more.
struct UnevenSplit {
    static constexpr int kMostHeads = 32, kFewChunks = 4;
    // Segments of a slow-decay head, by the number of such heads; 0: as many as the others. First where the other heads need
    // at most kFewChunks of warm-up, then where they need more.
    unsigned char segments[2][kMostHeads];
    int reach;  // if segments are uneven, a head that needs more warm-up chunks than this has a slow decay; 0: never uneven

    GDN_HOST_DEVICE constexpr int most() const {
        int most = 0;
        for (const auto& by_heads : segments)
            for (const int each : by_heads) most = each > most ? each : most;
        return most;
    }
};

// What segments hand over: a summary (M, L) of each but the last, (sequence, head, segment, ...), padded to whole blocks of
// rows and columns.
struct Summaries {
    float* states;           // L (dv, dk); for the first segment the state after it; then the states before all other segments
    void* transitions;       // M (dk, 2, dk): rounded to bf16, and the rounding residual
    unsigned* have_summary;  // per summary: value groups that have written their rows of M and L; for a group's summary, its
                             // two blocks each
    unsigned* have_state;    // per summary and row tile: value groups that have written the state after the first segment
    i64 count, per_head;     // summaries in all, and of each head; 0: a slow-decay head is not split
    int per_sequence;        // summaries of a head: its segments', then its groups'
    int summary_tokens;  // if not 0, packed sequences are split by their own lengths: room for a summary every so many tokens
    void* cached;        // CachedChunk (head, row tile, chunk of all sequences), or nullptr
    i64 chunks;          // in all sequences, at most
    float first_length;  // the first segment's, in lengths of the others, which take more passes
};

// Which calls a launch takes, or which sequences of a call. The decay of a head is *slow* if its state still matters far past a
// segment border, else it is *fast* (chunked/segments.cuh).
enum class LaunchTakes {
    every_call,
    if_all_decay_fast,     // sequences split into segments
    if_one_decays_slowly,  // sequences not split
    long_sequences,        // where the length of each decides: those that are split
    short_sequences,       // the others
};
GDN_HOST_DEVICE constexpr bool is_first_of_two(LaunchTakes takes) {
    return takes == LaunchTakes::if_one_decays_slowly || takes == LaunchTakes::short_sequences;
}
GDN_HOST_DEVICE constexpr bool is_second_of_two(LaunchTakes takes) {
    return takes == LaunchTakes::if_all_decay_fast || takes == LaunchTakes::long_sequences;
}

// What the first of two launches has found in the gates; it tells the other.
enum class DecayDecision : unsigned { none, all_decay_fast, one_decays_slowly };

struct ChunkedArgs {
    TensorMap query, key, value, output;  // (d, head, token, batch)
    TensorMap transitions;                // (column, part, row, summary)
    GdnCall call;
    DType state;
    int segments;    // that a fast-decay head has
    bool by_length;  // a sequence has `segments` only if it is long enough; its own length decides
    int reach;       // up to this many warm-up chunks cost less than an unsplit or chained sequence
    LaunchTakes takes;
    Summaries summaries;
    unsigned* decision;  // a zero, later the first launch's DecayDecision for the second; or nullptr
    unsigned* readers;   // zeros, per sequence, head and row tile, if states are updated in place; else nullptr
    int work_tiles;      // that all persistent blocks have together
    bool longest_first;  // packed sequences start in order of decreasing length
    UnevenSplit uneven;
    Divisor step_interval;  // of call.steps, if it is given
};

}  // namespace gdn_cuda::gdn
