// scan/rglru and scan/rglru_backward: marks of tokens that do not continue the state before them: resets, and first tokens of
// packed sequences.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/rglru/tokens.cuh>

namespace gdn_cuda::scan {

// Marks of a thread's tokens; bit i is token i.
struct RglruMarked {
    unsigned detached = 0;  // the token does not continue the state of the token before it
    unsigned starts = 0;    // detached tokens that begin a packed sequence
    unsigned begin = 0;     // starts that continue from the sequence's initial state
    unsigned unit = 0;      // the token's multiplier is 1, not sqrt(1 - a^2)
};

// Tokens after the last packed sequence count as one more sequence, with index `sequences` and no states.

__device__ __forceinline__ bool has_tokens(const RglruArgs& args, int sequence) {
    return span_of(args.cu_seqlens, sequence, args.tokens).length > 0;
}
// The last sequence before `sequence` that has tokens; -1 if there is none. It ends where `sequence` begins.
__device__ __forceinline__ int sequence_before(const RglruArgs& args, int sequence) {
    do --sequence;
    while (sequence >= 0 && !has_tokens(args, sequence));
    return sequence;
}

// The sequence that ends with the last token, or -1.
template <RglruConfig kConfig>
__device__ __forceinline__ int last_sequence(const RglruArgs& args, const RglruPlace<kConfig>& place) {
    if (args.cu_seqlens.data == nullptr) return place.batch;
    return load_index(args.cu_seqlens, args.sequences) < args.tokens ? -1 : sequence_before(args, args.sequences);
}

// The marks of a tile; all threads call this. `any`: whether a thread of the block has marks.
template <RglruConfig kConfig>
__device__ __forceinline__ RglruMarked marks_of_tile(const RglruArgs& args, const RglruPlace<kConfig>& place, int tile,
                                                     RglruMarks<kConfig>& shared, bool& any) {
    constexpr int kTokens = kConfig.tokens, kTile = kConfig.tile(), kThreads = kConfig.threads();
    const bool packed = args.cu_seqlens.data != nullptr, continues = args.initial.data != nullptr;
    RglruMarked marked;
    const bool first_is_fresh = tile == 0 && !continues;
    unsigned fresh = first_is_fresh && place.segment == 0 ? 1u : 0u;
    any = first_is_fresh && args.first_multiplier;
    if (packed || args.reset.data != nullptr) {
        const int first = tile * kTile, thread = static_cast<int>(threadIdx.x);
        __syncthreads();  // all threads have read the marks of the previous tile
#pragma unroll 4
        for (int i = thread; i < kTile; i += kThreads) {
            bool resets = false;
            if (args.reset.data != nullptr && i < args.tokens - first)
                resets = load_index(args.reset, place.batch * args.reset_batch + (first + i) * args.reset_token) != 0;
            const unsigned word = __ballot_sync(0xffffffffu, resets);  // kTile is a multiple of 32: all lanes are active
            if (thread % 32 == 0) shared.resets[i / 32] = word;
            shared.starts[i] = 0;
        }
        __syncthreads();
        if (packed) {
            int low = 0, high = args.sequences;  // binary search: the first sequence that begins in this tile or later
            while (low < high) {
                const int middle = low + (high - low) / 2;
                if (load_index(args.cu_seqlens, middle) < first)
                    low = middle + 1;
                else
                    high = middle;
            }
#pragma unroll 1
            for (int sequence = low + thread; sequence <= args.sequences; sequence += kThreads) {
                const i64 start = min(max(load_index(args.cu_seqlens, sequence), i64{0}), i64{args.tokens});
                if (start - first >= kTile) break;
                const bool is_tail = sequence == args.sequences && start < args.tokens;
                if (start >= first && (is_tail || (sequence < args.sequences && has_tokens(args, sequence))))
                    atomicMax(&shared.starts[start - first], sequence + 1);  // the last of overlapping sequences
            }
            __syncthreads();
        }
        const int mine = place.segment * kTokens;
        marked.detached = shared.resets[mine / 32] >> mine % 32 & ((1u << kTokens) - 1);
        fresh |= marked.detached;
        if (packed) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i)
                if (shared.starts[mine + i] != 0) {
                    const unsigned bit = 1u << i;
                    if (continues && (marked.detached & bit) == 0 && shared.starts[mine + i] <= args.sequences)
                        marked.begin |= bit;
                    else
                        fresh |= bit;
                    marked.starts |= bit;
                    marked.detached |= bit;
                }
        }
        any = __syncthreads_or(any || marked.detached != 0) != 0;
    }
    if (args.first_multiplier) marked.unit = fresh;
    return marked;
}

// Calls `visit(i, sequence)` for the tokens that begin a packed sequence. Not unrolled, as these are rare.
template <RglruConfig kConfig>
__device__ __forceinline__ void for_starts(unsigned bits, const RglruMarks<kConfig>& shared, int first, const auto& visit) {
#pragma unroll 1
    for (; bits != 0; bits &= bits - 1) {
        const int i = first + __ffs(static_cast<int>(bits)) - 1;
        visit(i, shared.starts[i] - 1);
    }
}

}  // namespace gdn_cuda::scan
