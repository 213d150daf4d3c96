// Segments of a sequence for gdn/prefill, where its heads alone would leave multiprocessors idle: a block begins as far before
// its segment as the state still matters, with a state of zero, and has no outputs until its segment begins.
//
// A token multiplies the state by exp(g) (I - beta k k^T), whose norm is exp(g) max(1, |1 - beta |k|^2|). Where the product of
// these over the tokens before a segment is below 2^-80, what the state was before them cannot change a bit of what follows but
// by a coincidence of roundings, or where all that follows is 2^-80 of what was before. Where gates are too slow for that, a
// segment begins with the state that the one before leaves. If that one has to wait for its own, it tells first what it will
// make of it, S M + L: L of a state of zero, M of the identity with values of zero.
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

// log2 of the most that 32 tokens from `first` on can make of a state's norm; a warp's.
template <PrefillConfig kConfig>
__device__ __forceinline__ float log_growth(const RecurrentArgs& args, int sequence, i64 first, int head) {
    constexpr float kLog2e = 1.4426950408889634f;
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
    for (int back = 0; back < most && growth * static_cast<float>(most) <= 0.5f * kForgotten * static_cast<float>(back);) {
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

// Where the blocks of a segment begin.
struct SegmentStart {
    int chunk;
    bool resumes;  // with the state that the segment before leaves
};
template <PrefillConfig kConfig>
__device__ __forceinline__ SegmentStart start_of_segment(const PrefillArgs& args, const Span& span, int sequence, int head,
                                                         int segment, int share, float* growths) {
    if (segment == 0) return {0, false};
    // Going back further takes longer than to resume, after about two passes over a segment and a link for each before; or,
    // without links, hardly less than to begin with the sequence.
    const bool linked = args.links.count > 0;
    const int chunk = segment * share, most = linked ? min(2 * (share + segment), chunk) : chunk / 2;
    const int first = first_that_matters<kConfig>(args.recurrence, span, sequence, head, chunk, most, growths);
    if (first >= 0) return {first, false};
    return linked ? SegmentStart{chunk, true} : SegmentStart{0, false};
}

// Counts that blocks leave for others: what a thread did before `tell`, and its barriers made it know of, is there after
// `await`.
__device__ __forceinline__ void tell(unsigned* count) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ __forceinline__ void await(const unsigned* count, unsigned wanted) {
    unsigned now;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
    while (now < wanted);
}

__device__ __forceinline__ unsigned* have_state(const PrefillLinks& links, i64 link) {
    return links.have_state + link * gridDim.x + blockIdx.x;
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_state(const PrefillLinks& links, i64 link) {
    await(have_state(links, link), kConfig.value_groups);
}
template <PrefillConfig kConfig>
__device__ __forceinline__ void await_summary(const PrefillLinks& links, i64 link) {
    await(links.have_summary + link, gridDim.x * kConfig.value_groups);
}

// Where states are updated in place, the last segment writes what others may have started from: it waits until they have read
// it.
__device__ __forceinline__ unsigned* readers_of(const PrefillArgs& args, const PrefillWork& work) {
    return args.readers + (static_cast<i64>(work.sequence) * args.recurrence.heads + work.head) * gridDim.x + blockIdx.x;
}

}  // namespace gdn_cuda::gdn
