// Left operands from a warp of the chain to the same warp of the outputs, in registers' order, and the warps' signals.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/plan.cuh>
#include <gdn_cuda/kernels/chunked/state_owner.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
using AheadOwner = StateOwner<kConfig, OwnerPlan<kConfig>>;

__device__ __forceinline__ void arrive_by_warp(const Lane& lane, unsigned long long& word) {
    __syncwarp();
    if (lane.lane == 0) barrier(word).arrive();
}

__device__ __forceinline__ void to_operand(unsigned (&x)[4], const uint4& four) {
    x[0] = four.x;
    x[1] = four.y;
    x[2] = four.z;
    x[3] = four.w;
}
template <class Fragment, int kSteps>
__device__ __forceinline__ void store_operand(Fragment (&to)[kSteps][kWarpgroup], const unsigned (&x)[kSteps][4], int thread) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
        *reinterpret_cast<uint4*>(to[step][thread].registers) = {x[step][0], x[step][1], x[step][2], x[step][3]};
}
template <class Fragment, int kSteps>
__device__ __forceinline__ void load_operand(unsigned (&x)[kSteps][4], const Fragment (&from)[kSteps][kWarpgroup], int thread) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
        to_operand(x[step], *reinterpret_cast<const uint4*>(from[step][thread].registers));
}

// Before the chunk whose initial state it is; after the last, nobody reads it. The one before has been read.
template <class Owner>
__device__ __forceinline__ void hand_over_state(const Owner& own) {
    store_operand(own.shared.fragments.state, own.rounded_state, own.thread);
    arrive_by_warp(own, own.shared.state_full);
}
template <class Owner>
__device__ __forceinline__ void hand_over_values(const Owner& own, const TokenOperand& x) {
    store_operand(own.shared.fragments.values, x, own.thread);
    arrive_by_warp(own, own.shared.values_full);
}

// Where a lane may keep 16 bytes a step in place of the values that its warp has loaded.
__device__ __forceinline__ unsigned values_vector(const SwizzledTile& values, int step, const Lane& lane) {
    return row_vector(tile_row(values.bytes, 16 * step + lane.lane / 2), 2 * lane.warp + lane.lane % 2);
}

}  // namespace gdn_cuda::gdn
