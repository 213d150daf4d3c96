// Segments of a sequence for gdn/prefill, where its heads alone would leave multiprocessors idle: a block begins as far before
// its segment as the state still matters, with a state of zero, and has no outputs until its segment begins.
//
// A token multiplies the state by exp(g) (I - beta k k^T), whose norm is exp(g) max(1, |1 - beta |k|^2|). Where the product of
// these over the tokens before a segment is below 2^-80, what the state was before them cannot change a bit of what follows but
// by a coincidence of roundings. Slow gates make a block begin with the sequence: as late as without segments, and no later.
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
    float growth = fmaf(scalar(args.gate), kLog2e, __log2f(fmaxf(1.f, fabsf(1.f - scalar(args.beta) * square))));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) growth += __shfl_xor_sync(0xffffffffu, growth, step);
    return growth;
}

// The chunk to begin with, for a segment that begins with chunk `segment`: at most `most` chunks before it, or the sequence's
// first. Called by the whole block; `growths` has room for its warps.
template <PrefillConfig kConfig>
__device__ __forceinline__ int first_that_matters(const RecurrentArgs& args, const Span& span, int sequence, int head,
                                                  int segment, float* growths) {
    constexpr int kWarps = kConfig.threads() / 32, kWarpsAChunk = kChunk / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float growth = 0.f;
    int first = segment;
#pragma unroll 1
    while (first > segment / 2) {
        const int token = first * kChunk - (warp + 1) * 32;  // warps go backwards
        const float own = token >= 0 ? log_growth<kConfig>(args, sequence, span.start + token, head) : 0.f;
        if (threadIdx.x % 32 == 0) growths[warp] = own;
        __syncthreads();
        for (int i = 0; i < kWarps && first > 0; i += kWarpsAChunk) {
            growth += growths[i] + growths[i + 1];
            --first;
            if (growth <= kForgotten) return first;
        }
        __syncthreads();
    }
    return 0;
}

// Where states are updated in place, the last segment writes what others may have started from: it waits until they have read
// it. They are dispatched before it, so they need not run at the same time.
__device__ __forceinline__ unsigned* readers_of(const PrefillArgs& args, const PrefillWork& work) {
    return args.readers + (static_cast<i64>(work.sequence) * args.recurrence.heads + work.head) * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ void state_is_read(const PrefillArgs& args, const PrefillWork& work) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(readers_of(args, work)) : "memory");
}
__device__ __forceinline__ void wait_for_readers(const PrefillArgs& args, const PrefillWork& work, unsigned count) {
    unsigned read;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(read) : "l"(readers_of(args, work)) : "memory");
    while (read < count);
}

}  // namespace gdn_cuda::gdn
