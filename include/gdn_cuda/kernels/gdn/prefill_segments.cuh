// Segments of a sequence for gdn/prefill, where its heads alone would leave multiprocessors idle. A head is taken
//
//     apart   a block begins as far before its segment as the state still matters, with a state of zero, and stores no
//             outputs until its segment begins;
//     linked  a segment begins with the state that the one before leaves. If that one has to wait for its own, it first
//             computes what it will make of it, S M + L: L from a state of zero, M from the identity with values of zero;
//     whole   one block walks the sequence.
//
// A head forgets if `reach` chunks make nothing of a state, at the pace of the gates near the borders between segments; else
// it remembers. A head that forgets is taken apart, another one linked or whole, whichever the host expects to be faster. All
// blocks of a head come to the same answer by themselves (`one_remembers`).
//
// Where another configuration walks whole sequences faster, the host launches both, and all blocks of a call come to one
// answer: the configuration that splits takes the call if all heads forget, the other one if one remembers. They could share
// the heads, but two kernels side by side took twice as long for a chunk. (Probably neighbouring multiprocessors share a cache
// for instructions.)
//
// A token multiplies the state by exp(g) (I - beta k k^T), whose norm is exp(g) max(1, |1 - beta |k|^2|). Where the product of
// these over the tokens before a segment is below 2^-80, what the state was before them cannot change a bit of what follows but
// by a coincidence of roundings, or where all that follows is 2^-80 of what was before.
//
// Blocks wait only for blocks before them in the grid. Those are dispatched first on every GPU seen so far, though CUDA does
// not promise it: then blocks need not all run at the same time.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_common.cuh>

namespace gdn_cuda::gdn {

constexpr float kForgotten = -80.f;  // log2

// |k|^2 of 32 tokens from `first` on, a lane each; half a warp reads a key.
template <PrefillConfig kConfig>
__device__ __forceinline__ float key_squares(const RecurrentArgs& args, int sequence, i64 first, int head) {
    const int lane = threadIdx.x % 32, piece = lane % 16;
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key));
    const auto* keys = static_cast<const Storage<kConfig.io>*>(args.key.data) + sequence * args.key.batch +
                       first * args.key.token + key_head * args.key.head + piece * 8;
    float mine = 0.f;
#pragma unroll 8
    for (int pair = 0; pair < 32; pair += 2) {
        const int token = pair + lane / 16;
        float square = 0.f;
        if (piece * 8 < args.dk)
            add_squares<kConfig.io>(square, *reinterpret_cast<const uint4*>(keys + token * args.key.token));
#pragma unroll
        for (int step = 8; step > 0; step /= 2) square += __shfl_xor_sync(0xffffffffu, square, step);
        const float own = __shfl_sync(0xffffffffu, square, lane % 2 * 16);
        if (lane / 2 == pair / 2) mine = own;
    }
    return mine;
}

// Has keys, queries and values of a chunk brought to the L2 while something else is waited for; by the whole block.
template <PrefillConfig kConfig>
__device__ __forceinline__ void prefetch_chunk(const RecurrentArgs& args, const Span& span, int sequence, int head, int chunk) {
    constexpr int kLine = 64, kLines = 2;  // elements, of a row
    const int thread = static_cast<int>(threadIdx.x), token = chunk * kChunk + thread / kLines % kChunk,
              which = thread / (kLines * kChunk), element = thread % kLines * kLine;
    const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key));
    const Rows& rows = which == 0 ? args.key : which == 1 ? args.query : args.value;
    if (which > 2 || token >= span.length || element >= (which == 2 ? args.dv : args.dk)) return;
    const auto* row = static_cast<const Storage<kConfig.io>*>(rows.data) + sequence * rows.batch +
                      (span.start + token) * rows.token + (which == 2 ? head : key_head) * rows.head + element;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(row));  // CUTLASS prefetches through TMA only
}

// log2 of the most that 32 tokens from `first` on can make of a state's norm; a warp's.
template <PrefillConfig kConfig>
__device__ __forceinline__ float log_growth(const RecurrentArgs& args, int sequence, i64 first, int head) {
    const int lane = threadIdx.x % 32;
    const float square = args.qk_norm ? 1.f : key_squares<kConfig>(args, sequence, first, head);
    const auto scalar = [&](const Scalars& of) {
        return load_number(of.values, sequence * of.batch + (first + lane) * of.token + head * of.head);
    };
    const float change = fabsf(1.f - scalar(args.beta) * square);
    float growth = fmaf(scalar(args.gate), kLog2e, change <= 1.f ? 0.f : __log2f(change));  // NaN is never forgotten
#pragma unroll
    for (int step = 16; step > 0; step /= 2) growth += __shfl_xor_sync(0xffffffffu, growth, step);
    return growth;
}

// The chunk to begin with so that nothing before matters to what follows `chunk`; -1 where that is more than `most` chunks
// before, or seems to be. Called by the whole block; `growths` has room for its warps.
template <PrefillConfig kConfig>
__device__ __forceinline__ int first_that_matters(const RecurrentArgs& args, const Span& span, int sequence, int head,
                                                  int chunk, int most, float* growths) {
    constexpr int kWarps = kConfig.threads() / 32, kWarpsAChunk = kChunk / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float growth = 0.f;
#pragma unroll 1
    for (int back = 0; back < most;) {
        const int token = (chunk - back) * kChunk - (warp + 1) * 32;  // warps go backwards
        const float own = token >= 0 ? log_growth<kConfig>(args, sequence, span.start + token, head) : 0.f;
        __syncthreads();
        if (threadIdx.x % 32 == 0) growths[warp] = own;
        __syncthreads();
        for (int i = 0; i < kWarps && back < chunk; i += kWarpsAChunk) {
            growth += growths[i] + growths[i + 1];
            ++back;
            if (growth <= kForgotten) return chunk - back;
        }
    }
    return -1;
}

// Chunks of a segment, when a sequence of so many is split.
__device__ __forceinline__ int chunks_of_segment(const PrefillArgs& args, int chunks) {
    return max((chunks + args.segments - 1) / args.segments, kShortestSegment);
}

// Whether a head remembers: whether, from some border between segments, 2^-80 is more than `reach` chunks back at the pace of
// every fourth gate of the chunk before that border. Keys are left out, for they seldom let a state grow, and who is wrong is
// only slower. Sums are of integers, so that blocks of another configuration come to the same answer. Called by the whole
// block, for one head of a sequence or for all: then neighbouring threads have neighbouring heads, whose gates are in one line.
// Short code, for the first block of a multiprocessor waits for it to be fetched.
template <PrefillConfig kConfig>
__device__ __forceinline__ bool one_remembers(const PrefillArgs& args, bool for_all, int sequence, int head) {
    constexpr float kUnit = 1 << 14;
    constexpr i64 kNeeded = static_cast<i64>(kForgotten * kUnit);
    constexpr int kApart = 4, kLoads = kChunk / kApart;  // tokens
    const RecurrentArgs& all = args.recurrence;
    // Threads side by side, a power of two, and what one of them takes: a head of a sequence.
    const int wide = for_all ? 128 : 1, heads = for_all ? all.sequences * all.heads : 1;
    bool found = false;
#pragma unroll 1
    for (int i = threadIdx.x % wide; i < heads; i += wide) {
        if (for_all) {
            sequence = static_cast<int>(static_cast<unsigned>(i) / static_cast<unsigned>(all.heads));
            head = i - sequence * all.heads;
        }
        const Span span = span_of(all.cu_seqlens, sequence, all.tokens);
        const int chunks = (span.length + kChunk - 1) / kChunk, share = chunks_of_segment(args, chunks);
#pragma unroll 1
        for (int ends = (1 + threadIdx.x / wide) * share; ends < chunks; ends += kConfig.threads() / wide * share) {
            i64 at = sequence * all.gate.batch + (span.start + ends * kChunk - 1) * all.gate.token + head * all.gate.head;
            unsigned raw[kLoads];
#pragma unroll
            for (unsigned& number : raw) {
                number = load_raw(all.gate.values, at);
                at -= kApart * all.gate.token;
            }
            int sum = 0;
#pragma unroll
            for (const unsigned number : raw) {  // NaN is 0 as an integer: it is never forgotten
                const float gate = number_of(number, all.gate.values.type) * (kLog2e * kUnit);
                sum += __float2int_rn(at_least(gate, kLowestGateLog2 * kUnit));
            }
            found |= static_cast<i64>(sum) * kApart * args.reach > kNeeded;
        }
    }
    return __syncthreads_or(found) != 0;
}

// Counters in global memory between blocks: what a thread did or had synchronised with before `red_release` is visible after
// `wait_for_count`. CUTLASS's (cutlass/barrier.h) release by a fence and a relaxed reduction, one instruction more.
__device__ __forceinline__ void red_release(unsigned* count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ __forceinline__ void wait_for_count(const unsigned* count, unsigned wanted) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    while (now < wanted);
}

__device__ __forceinline__ unsigned* have_state(const PrefillLinks& links, i64 link) {
    return links.have_state + link * gridDim.x + blockIdx.x;
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_state(const PrefillLinks& links, i64 link) {
    wait_for_count(have_state(links, link), kConfig.value_groups);
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_summary(const PrefillLinks& links, i64 link) {
    wait_for_count(links.have_summary + link, gridDim.x * kConfig.value_groups);
}

// Where states are updated in place, the last segment writes what others may have started from: it waits until they have read
// it.
__device__ __forceinline__ unsigned* readers_of(const PrefillArgs& args, const PrefillWork& work) {
    return args.readers + (static_cast<i64>(work.sequence) * args.recurrence.heads + work.head) * gridDim.x + blockIdx.x;
}

}  // namespace gdn_cuda::gdn
