// What the roles of gdn/prefill share: where they are, and how they wait for each other.
#pragma once

#include <gdn_cuda/kernels/common/matrix.cuh>
#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/common/wgmma.cuh>
#include <gdn_cuda/kernels/gdn/prefill_plan.cuh>
#include <gdn_cuda/kernels/gdn/tokens.cuh>

namespace gdn_cuda::gdn {

// Read anew each time: other roles than the reader's are what registers are for.
__device__ __forceinline__ int tokens_in(const PrefillWork& work, int chunk) {
    return min(kChunk, work.length - chunk * kChunk);
}

// Where a thread is in its warpgroup.
struct Lane {
    int group, thread, warp, lane, g, t;  // the first among the block's warpgroups

    // Computed anew for every chunk: the compiler would keep dozens of addresses and masks over the loop, and spill them.
    __device__ __forceinline__ void find_place() {
        thread = threadIdx.x;
        asm volatile("" : "+r"(thread));
        group = thread / kWarpgroup;
        thread %= kWarpgroup;
        warp = thread / 32;
        lane = thread % 32;
        g = lane / 4;
        t = lane % 4;
    }
};

// The place of chunk c among the stages, and how often they have gone round.
template <int kStages>
struct Turn {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ Barrier& barrier(unsigned long long& word) {
    return reinterpret_cast<Barrier&>(word);
}

// Named barriers; 0 is the whole block's. A helper has one of its own, and one for each row of blocks that others wait for.
enum Meeting : int { kHelpersMeet = 1, kBlocksMeet = 3, kValuesMeet = 9 };
constexpr int kBlockRowsAwaited = 3;

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// From 16 of the 64 elements to the next, for operands that lie along k; from 16 of the 64 tokens, for those that do not.
constexpr int kStepAlong = 32, kStepAcross = 16 * 128;
__device__ __forceinline__ constexpr int along(int step) {  // in units of a descriptor, over tiles one after another
    return (step / 4 * static_cast<int>(sizeof(PrefillTile)) + step % 4 * kStepAlong) / kDescriptorUnit;
}
__device__ __forceinline__ constexpr int across(int step) {
    return step * kStepAcross / kDescriptorUnit;
}

}  // namespace gdn_cuda::gdn
