// Arguments of gdn/prefill: tensors, how sequences are split, and what segments hand over.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>

namespace gdn_cuda::gdn {

// Segments whose maps are multiplied first, counted from the second segment on (prefill_segments.cuh); 1: none.
GDN_HOST_DEVICE constexpr int segments_in_group(int segments) {
    return segments < 14 ? 1 : segments < 17 ? 2 : 3;
}
GDN_HOST_DEVICE constexpr int groups_of(int segments) {
    return segments_in_group(segments) > 1 ? (segments - 4) / segments_in_group(segments) : 0;
}

// How many of a sequence's blocks each head gets, if some heads remember and others do not: those that remember get more.
struct PrefillSpread {
    static constexpr int kMostHeads = 32, kFewChunks = 4;
    // Of each head that remembers, by how many do; 0: as many as others. First, if the others need kFewChunks of warm-up at
    // most; then, if they need more.
    unsigned char segments[2][kMostHeads];
    int reach;  // with uneven numbers, a head that needs more warm-up chunks than this remembers; 0: never uneven

    GDN_HOST_DEVICE constexpr int most() const {
        int most = 0;
        for (const auto& of_kind : segments)
            for (const int each : of_kind) most = each > most ? each : most;
        return most;
    }
};

// Data passed between segments: (sequence, head, segment except the last, ...), padded to whole blocks of rows and columns.
struct PrefillLinks {
    float* states;           // L (dv, dk), of the first segment the state after it; then the states before all other segments
    void* transfers;         // M (dk, 2, dk): rounded to bf16, and the rounding residual
    unsigned* have_summary;  // per link: value groups that have written their rows of M and L; for a group's link, its two
                             // blocks each
    unsigned* have_state;    // per link and row tile: value groups that have written the state after the first segment
    i64 all, of_head;        // links in all, and of each head; 0: a head that remembers is not split
    int of_sequence;         // links, of a head: its segments', then its groups'
    int tokens;     // if not 0, packed sequences are split by their own lengths, with room for a link every `tokens` tokens
    void* records;  // PrefillRecord (head, row tile, chunk of all sequences), or nullptr
    i64 chunks;     // of all sequences, at most
    float first;    // length of the first segment in lengths of the others, which take more passes
};

// Which calls a launch takes, or which sequences of a call. A head *remembers* if its state still matters far past a segment
// border, else it *forgets* (prefill_segments.cuh).
enum class PrefillTakes {
    every_call,
    if_all_forget,     // sequences split into segments
    if_one_remembers,  // sequences not split
    long_sequences,    // where the length of each decides: those that are split
    short_sequences,   // the others
};
GDN_HOST_DEVICE constexpr bool is_first_of_two(PrefillTakes takes) {
    return takes == PrefillTakes::if_one_remembers || takes == PrefillTakes::short_sequences;
}
GDN_HOST_DEVICE constexpr bool is_second_of_two(PrefillTakes takes) {
    return takes == PrefillTakes::if_all_forget || takes == PrefillTakes::long_sequences;
}

// What the first of two launches has found in the gates; it tells the other.
enum class PrefillDecision : unsigned { none, all_forget, one_remembers };

struct PrefillArgs {
    TensorMap query, key, value, output;  // (d, head, token, batch)
    TensorMap transfers;                  // (column, part, row, link)
    GdnCall recurrence;
    DType state;
    int segments;    // into which a head that forgets is split
    bool by_length;  // a sequence has `segments` only if it is long enough; its own length decides
    int reach;       // up to this many warm-up chunks cost less than an unsplit or linked sequence
    PrefillTakes takes;
    PrefillLinks links;
    unsigned* decision;  // a zero, later the first launch's PrefillDecision for the second; or nullptr
    unsigned* readers;   // zeros, per sequence, head and row tile, if states are updated in place; else nullptr
    int items;           // of all persistent blocks
    bool longest_first;  // packed sequences start in order of decreasing length
    PrefillSpread spread;
};

}  // namespace gdn_cuda::gdn
