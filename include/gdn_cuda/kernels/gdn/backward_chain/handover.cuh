// What the roles of gdn/backward_chain hand each other, and the states that a chain stores for gdn/backward_gradients.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/plan.cuh>
#include <gdn_cuda/kernels/recurrence/channel_decay.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
using BackwardOwner = StateOwner<kConfig.block(), BackwardChainPlan<kConfig>>;

// Whether entries of T cancel; warp-uniform for the compiler.
template <class Factors>
__device__ __forceinline__ bool cancels(const Factors& factors) {
    return __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
}

// A chunk's decay of a thread's elements of the state: one, or one for each of its columns.
template <BackwardChainConfig kConfig>
struct StateDecay {
    float decay;

    template <class Factors>
    __device__ __forceinline__ void read(const Factors& factors, int) {
        decay = factors.decay;
    }
    template <class Owner>
    __device__ __forceinline__ void scale(Owner& own) const {
        scale_fragment(own.state, decay);
    }
};
template <BackwardChainConfig kConfig>
    requires(kConfig.channels)
struct StateDecay<kConfig> {
    float2 columns[kConfig.head_k / 8];

    __device__ __forceinline__ void read(const KdaTrainingFactors& factors, int t) {
#pragma unroll
        for (int n = 0; n < kConfig.head_k / 8; ++n) columns[n] = pair_at(&factors.decay[8 * n + 2 * t]);
    }
    // Where an element is not finite, products make its row NaN whatever the decay is.
    template <class Owner>
    __device__ __forceinline__ void scale(Owner& own) const {
#pragma unroll
        for (int i = 0; i < kConfig.head_k / 2; ++i) own.state[i] *= i % 2 == 0 ? columns[i / 4].x : columns[i / 4].y;
    }
};

template <int kElements>
__device__ __forceinline__ void hand_over(HandedFragment<kElements>& to, const float (&x)[kElements], int thread) {
#pragma unroll
    for (int i = 0; i < kElements; i += 4)
        *reinterpret_cast<float4*>(to.fours[i / 4][thread].elements) = {x[i], x[i + 1], x[i + 2], x[i + 3]};
}
// Calls visit(i, four elements from i on).
template <int kElements, class Visit>
__device__ __forceinline__ void for_each_handed(const HandedFragment<kElements>& from, int thread, Visit&& visit) {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) visit(i, *reinterpret_cast<const float4*>(from.fours[i / 4][thread].elements));
}

// The first chunk in time of the block's.
__device__ __forceinline__ i64 first_prepared(const BackwardChainArgs& args, const ChunkedWork& work) {
    return prepared_index(args, args.to, work.head, work.sequence, work.tokens.start - work.tokens.before, work.tokens.before);
}
// By the chain: its 64 rows, rounded as the chunk's products read them. The warp that stores them has the fence: here it would
// hold up the chain for 400 cycles.
template <class Owner>
__device__ __forceinline__ void stage_state(const Owner& own, int chunk) {
    const unsigned to = tile_row(own.shared.states[0].bytes, 16 * own.warp + own.lane % 16);
    barrier(own.shared.state_empty).wait(chunk & 1 ^ 1);
#pragma unroll
    for (int step = 0; step < Owner::kStateSteps; ++step) {
        const auto& x = own.rounded_state[step];
        stmatrix_x4(row_vector(to, step % 4 * 2 + own.lane / 16) + step / 4 * static_cast<int>(sizeof(SwizzledTile)), x[0],
                    x[1], x[2], x[3]);
    }
    arrive_by_warp(own, own.shared.state_full);
}
// By one thread.
template <BackwardChainConfig kConfig>
__device__ __forceinline__ void store_states(BackwardChainPlan<kConfig>& shared, const BackwardChainArgs& args) {
    constexpr ChunkedConfig kBlock = kConfig.block();
    const ChunkedWork& work = shared.work;
    const int first = static_cast<int>(first_prepared(args, work));
#pragma unroll 1
    for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
        barrier(shared.state_full).wait(chunk & 1);
        cutlass::arch::fence_view_async_shared();
#pragma unroll
        for (int tile = 0; tile < kBlock.key_tiles() && shared.stores; ++tile)
            tma_store(args.states, {tile * kTileElements, 0, work.first_row, first + in_time<kBlock>(work.tokens, chunk)},
                      shared.states[tile].bytes);
        cute::tma_store_arrive();
        cute::tma_store_wait<0>();
        barrier(shared.state_empty).arrive();
    }
}

}  // namespace gdn_cuda::gdn
