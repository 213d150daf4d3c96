// Splits sequences into segments where unsplit heads would leave SMs idle. A head is
//
//     warm-started  a block starts from a zero state as many chunks before its segment as still matter, and stores no outputs
//                   before the segment;
//     chained       a segment starts from the final state of the one before. All but the first and the last compute their
//                   summary (M, L) first: L from a zero state, M from the identity with zero values. Every block then applies
//                   S <- S M + L from the state after the first segment on. T, P and factors that several passes need are
//                   cached (chunked/cache.cuh). If there are many summaries, those of two or three adjacent segments are
//                   composed first, all groups at once, and blocks apply the groups' summaries up to their own group;
//     unsplit       one block takes the sequence.
//
// The decay of a head is fast if, at the rate of the gates near the segment borders, `reach` chunks make the state negligible;
// else it is slow. A fast-decay head is warm-started; a slow-decay head is chained or unsplit, whichever the host's cost model
// prefers. All blocks of a head reach the same decision independently (`one_decays_slowly`). If a sequence is alone and its
// heads differ, chained heads get more segments and the others fewer (`UnevenSplit`); with `deterministic`, in every sequence.
//
// With `deterministic`, how a sequence is split depends on its own length and gates alone (`segments_of_sequence`). Of packed
// sequences, one launch takes those that are long enough for segments, and another one the others, unsplit.
//
// If another configuration is faster on unsplit sequences, the host launches both, and all blocks of a call agree: the first
// launch does the work if a head has a slow decay, the second, which splits, if none has. Each launch taking its own heads
// instead doubled the time per chunk: two kernels ran side by side (probably adjacent SMs have one instruction cache).
//
// A token multiplies the state by exp(g) (I - beta k k^T), of norm exp(g) max(1, |1 - beta |k|^2|). Where the product over the
// tokens before a segment is below 2^-80, the state before them changes no bit of the segment's results, except by a
// coincidence of roundings or where all of them are 2^-80 of what came before.
//
// Blocks wait only for blocks before them in the grid, so that they need not all be resident. Every GPU seen so far dispatches
// those first, though CUDA does not promise it.
#pragma once

#include <gdn_cuda/kernels/chunked/factors.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>

namespace gdn_cuda::gdn {

// |k|^2 of the 32 tokens from `first` on, one per lane; half a warp reads a key.
template <ChunkedConfig kConfig>
__device__ __forceinline__ float key_squares(const GdnCall& call, int sequence, i64 first, int head) {
    const int lane = threadIdx.x % 32, vector = lane % 16;
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key));
    const auto* keys = static_cast<const Storage<kConfig.io>*>(call.key.data) + sequence * call.key.batch +
                       first * call.key.token + key_head * call.key.head + vector * 8;
    float mine = 0.f;
#pragma unroll 8
    for (int pair = 0; pair < 32; pair += 2) {
        const int token = pair + lane / 16;
        float square = 0.f;
        if (vector * 8 < call.dk)
            add_squares<kConfig.io>(square, *reinterpret_cast<const uint4*>(keys + token * call.key.token));
#pragma unroll
        for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
        const float own = __shfl_sync(0xffffffffu, square, lane % 2 * 16);
        if (lane / 2 == pair / 2) mine = own;
    }
    return mine;
}

// Prefetches keys, queries and values of a chunk into L2 while the block waits; called by the whole block.
template <ChunkedConfig kConfig>
__device__ __forceinline__ void prefetch_chunk(const GdnCall& call, const Span& span, int sequence, int head, int chunk) {
    constexpr int kLine = 64, kLines = 2;  // elements per line; lines per row
    const int thread = static_cast<int>(threadIdx.x), token = chunk * kChunk + thread / kLines % kChunk,
              which = thread / (kLines * kChunk), element = thread % kLines * kLine;
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(call.heads_per_key));
    const Rows& rows = which == 0 ? call.key : which == 1 ? call.query : call.value;
    if (which > 2 || token >= span.length || element >= (which == 2 ? call.values : call.dk)) return;
    const auto* row = static_cast<const Storage<kConfig.io>*>(rows.data) + sequence * rows.batch +
                      (span.start + token) * rows.token + (which == 2 ? head : key_head) * rows.head + element;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row));  // CUTLASS prefetches through TMA only
}

// log2 of the bound on the growth of a state's norm over the 32 tokens from `first` on; by a warp.
template <ChunkedConfig kConfig>
__device__ __forceinline__ float log_growth(const GdnCall& call, int sequence, i64 first, int head) {
    const int lane = threadIdx.x % 32;
    const float square = call.qk_norm ? 1.f : key_squares<kConfig>(call, sequence, first, head);
    const auto scalar_of = [&](const Scalars& scalars) {
        return load_float(scalars.values, sequence * scalars.batch + (first + lane) * scalars.token + head * scalars.head);
    };
    const float change = fabsf(1.f - scalar_of(call.beta) * square);
    float growth = fmaf(scalar_of(call.gate), kLog2e, change <= 1.f ? 0.f : __log2f(change));  // NaN is never negligible
#pragma unroll
    for (int step = 16; step > 0; step /= 2) growth += __shfl_xor_sync(0xffffffffu, growth, step);
    return growth;
}

// The chunk to start from so that nothing earlier matters at `chunk`; -1 if the bound does not show one within `most` chunks.
// Called by the whole block; `growths`: one float per warp.
template <ChunkedConfig kConfig>
__device__ __forceinline__ int first_that_matters(const GdnCall& call, const Span& span, int sequence, int head, int chunk,
                                                  int most, float* growths) {
    constexpr int kWarps = kConfig.threads() / 32, kWarpsAChunk = kChunk / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float growth = 0.f;
#pragma unroll 1
    for (int back = 0; back < most;) {
        const int token = (chunk - back) * kChunk - (warp + 1) * 32;  // warps go backwards in time
        const float own = token >= 0 ? log_growth<kConfig>(call, sequence, span.start + token, head) : 0.f;
        __syncthreads();
        if (threadIdx.x % 32 == 0) growths[warp] = own;
        __syncthreads();
        for (int i = 0; i < kWarps && back < chunk; i += kWarpsAChunk) {
            growth += growths[i] + growths[i + 1];
            ++back;
            if (growth <= kNegligibleLog2) return chunk - back;
        }
    }
    return -1;
}

// Segments of a sequence, and chunks of each.
__device__ __forceinline__ int segments_of_sequence(const ChunkedArgs& args, int chunks) {
    if (!args.by_length) return args.segments;
    return chunks > kLongestUnsplit ? min(chunks / kShortestByLength, args.segments) : 1;
}
__device__ __forceinline__ int chunks_in_segment(const ChunkedArgs& args, int chunks) {
    const int segments = segments_of_sequence(args, chunks);
    return max((chunks + segments - 1) / segments, kShortestSegment);
}

// A long packed sequence contains a token whose index in the batch is a multiple of kBetweenLong, and no other sequence
// contains that token. The first such multiple, divided by kBetweenLong, is the index of the sequence among the long ones.
constexpr int kBetweenLong = kLongestUnsplit * kChunk;
__device__ __forceinline__ int long_index_of(const Span& span) {
    return static_cast<int>((span.start + kBetweenLong - 1) / kBetweenLong);
}
// The last packed sequence that begins no later than at `token`. Called by whole warps.
__device__ __forceinline__ int sequence_at(const GdnCall& call, i64 token) {
    const int lane = threadIdx.x % 32;
    int first = 0;
#pragma unroll 1
    for (int many = call.sequences; many > 1;) {
        const int step = (many + 31) / 32, before = lane * step;
        const bool begun = before < many && load_index(call.cu_seqlens, first + before) <= token;
        const int last = (31 - __clz(__ballot_sync(0xffffffffu, begun) | 1)) * step;
        first += last;
        many = min(step, many - last);
    }
    return first;
}

// log2 of the decay of the chunk before chunk `ends`, at a segment border, as far as every fourth gate shows it; in units of
// 2^-14. Keys are ignored: they seldom let a state grow, and a wrong answer is only slower. Integer sums give the same answer
// in every configuration.
constexpr float kRateUnit = 1 << 14;
__device__ __forceinline__ i64 rate_of_chunk(const ChunkedArgs& args, int sequence, const Span& span, int head, int ends) {
    constexpr int kGateStride = 4, kLoads = kChunk / kGateStride;  // in tokens
    const GdnCall& call = args.call;
    i64 at = sequence * call.gate.batch + (span.start + ends * kChunk - 1) * call.gate.token + head * call.gate.head;
    unsigned raw[kLoads];
#pragma unroll
    for (unsigned& bits : raw) {
        bits = load_raw(call.gate.values, at);
        at -= kGateStride * call.gate.token;
    }
    int sum = 0;
#pragma unroll
    for (const unsigned bits : raw) {  // NaN converts to 0: never negligible
        const float gate = to_float(bits, call.gate.values.type) * (kLog2e * kRateUnit);
        sum += __float2int_rn(at_least(gate, kLowestGateLog2 * kRateUnit));
    }
    return static_cast<i64>(sum) * kGateStride;
}
// Whether decay to 2^-80 takes more than `reach` chunks at this rate.
__device__ __forceinline__ bool decays_slowly_at(i64 rate, int reach) {
    return rate * reach > static_cast<i64>(kNegligibleLog2 * kRateUnit);
}

// Whether a head has a slow decay at some segment border. Called by the whole block, for one head of a sequence or for all;
// then adjacent threads read adjacent heads, whose gates are in the same cache lines. Kept short: an SM's first block waits for
// the instruction fetch.
template <ChunkedConfig kConfig>
__device__ __forceinline__ bool one_decays_slowly(const ChunkedArgs& args, bool for_all, int sequence, int head) {
    const GdnCall& call = args.call;
    // `wide` (a power of two) threads take consecutive (sequence, head) pairs.
    const int wide = for_all ? 128 : 1, heads = for_all ? call.sequences * call.heads : 1;
    bool found = false;
#pragma unroll 1
    for (int i = threadIdx.x % wide; i < heads; i += wide) {
        if (for_all) {
            sequence = static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(call.heads));
            head = i - sequence * call.heads;
        }
        const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
        const int chunks = (span.length + kChunk - 1) / kChunk, segment_chunks = chunks_in_segment(args, chunks);
#pragma unroll 1
        for (int ends = (1 + threadIdx.x / wide) * segment_chunks; ends < chunks;
             ends += kConfig.threads() / wide * segment_chunks)
            found |= decays_slowly_at(rate_of_chunk(args, sequence, span, head, ends), args.reach);
    }
    return __syncthreads_or(found) != 0;
}

// The heads of a sequence that need more than so many warm-up chunks, a bit for each.
struct SlowHeads {
    unsigned far, near, few;  // args.reach; args.uneven.reach, which is mostly less; UnevenSplit::kFewChunks
};
// Called by the whole block; `masks`: three words per warp, not to be written before the block's next barrier.
template <ChunkedConfig kConfig>
__device__ __forceinline__ SlowHeads slow_heads(const ChunkedArgs& args, int sequence, const Span& span, unsigned* masks) {
    constexpr int kWarps = kConfig.threads() / 32;
    const int heads = args.call.heads, chunks = (span.length + kChunk - 1) / kChunk,
              segment_chunks = chunks_in_segment(args, chunks), borders = (chunks - 1) / segment_chunks;
    SlowHeads found{};
#pragma unroll 1
    for (int i = threadIdx.x; i < heads * borders; i += kConfig.threads()) {
        const int border = static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(heads)), head = i - border * heads;
        const i64 rate = rate_of_chunk(args, sequence, span, head, (1 + border) * segment_chunks);
        found.far |= static_cast<unsigned>(decays_slowly_at(rate, args.reach)) << head;
        found.near |= static_cast<unsigned>(decays_slowly_at(rate, args.uneven.reach)) << head;
        found.few |= static_cast<unsigned>(decays_slowly_at(rate, UnevenSplit::kFewChunks)) << head;
    }
    const unsigned by_warp[] = {__reduce_or_sync(0xffffffffu, found.far), __reduce_or_sync(0xffffffffu, found.near),
                                __reduce_or_sync(0xffffffffu, found.few)};
    if (threadIdx.x % 32 == 0)
        for (int i = 0; i < 3; ++i) masks[i * kWarps + threadIdx.x / 32] = by_warp[i];
    __syncthreads();
    const auto by_block = [&](int i) {
        return __reduce_or_sync(0xffffffffu, masks[i * kWarps + min(static_cast<int>(threadIdx.x % 32), kWarps - 1)]);
    };
    return {by_block(0), by_block(1), by_block(2)};
}

}  // namespace gdn_cuda::gdn
