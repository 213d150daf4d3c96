// scan/rglru and scan/rglru_backward: the scan over the segments of a tile.
//
// A segment's map is x -> 2^log x + added. Decays are composed as sums of their base-2 logarithms, since a product of many
// decays near one drifts by their rounding; a state passes a warp's tokens as x + (2^log - 1) x.
#pragma once

#include <gdn_cuda/kernels/scan/rglru/gate.cuh>
#include <gdn_cuda/kernels/scan/rglru/tokens.cuh>

namespace gdn_cuda::scan {

// The state after tokens that multiply it by 2^log and add `added`; log = -infinity erases even an infinite state.
__device__ __forceinline__ float state_after(float log, float state, float added) {
    return log == minus_infinity() ? added : fmaf(exp2_fast(log), state, added);
}

__device__ __forceinline__ RglruStep step_of(float log, float added) {
    const bool near = log > kNearOne;
    return {near ? 1.f : 0.f, near ? power_minus_one(log) : exp2_fast(log), added};
}
// Applies the steps of a tile one after another: `state`, after those so far, is kept * before + gained.
struct RglruChain {
    float state, kept = 1.f, gained = 0.f;

    __device__ __forceinline__ void apply(const RglruStep& step) {
        if (step.whole + step.rest == 0.f) state = gained = 0.f;  // erases even an infinite state
        const float gain = fmaf(step.rest, state, step.added);
        state = fmaf(step.whole, state, gain);
        gained = fmaf(step.whole, gained, gain);
        kept *= step.whole;
    }
    // The state after these steps, from `before`; the rounding error of the sum is in `low`.
    __device__ __forceinline__ RglruState after(const RglruState& before) const {
        if (kept == 0.f) return {gained, 0.f};
        const float gain = gained + before.low, value = before.value + gain;
        return {value, gain - (value - before.value)};
    }
};

// ---- The scan

template <RglruConfig kConfig>
struct RglruScan {
    RglruSteps<kConfig>& shared;
    int buffer = 0;

    // The composed map of the segments before this one in its warp; with channels last, a warp is one segment of each channel.
    struct Before {
        float log = 0.f, added = 0.f;
    };

    // Writes the map of the warp (channels last: of the segment) to shared memory. kForward: segments are composed from the
    // first on.
    template <bool kForward>
    __device__ __forceinline__ Before publish(float log, float added) const {
        using Place = RglruPlace<kConfig>;
        Before before;
        if constexpr (!kConfig.channels_last) {
            const int passed = kForward ? Place::lane() : 31 - Place::lane();
            const auto shuffled = [](float x, int lanes) {
                return kForward ? __shfl_up_sync(0xffffffffu, x, lanes) : __shfl_down_sync(0xffffffffu, x, lanes);
            };
#pragma unroll
            for (int lanes = 1; lanes < 32; lanes *= 2) {
                const float other_log = shuffled(log, lanes), other_added = shuffled(added, lanes);
                if (passed >= lanes) {
                    added = state_after(log, other_added, added);
                    log += other_log;
                }
            }
            before = {shuffled(log, 1), shuffled(added, 1)};
            if (passed == 31) shared.at[buffer][Place::warp()][0] = step_of(log, added);
        } else {
            shared.at[buffer][Place::warp()][Place::lane()] = step_of(log, added);
        }
        return before;
    }
    // Call after a barrier: returns the state before this thread's segment; `carried`, the state before the tile, becomes that
    // after it.
    template <bool kForward>
    __device__ __forceinline__ float enter(const Before& before, RglruState& carried) const {
        using Place = RglruPlace<kConfig>;
        constexpr int kWarps = kConfig.warps();
        RglruChain chain{carried.value};
        float start = carried.value;
#pragma unroll 4  // more loads in flight would cost registers
        for (int i = 0; i < kWarps; ++i) {
            const int warp = kForward ? i : kWarps - 1 - i;
            if (warp == Place::warp()) start = chain.state;
            chain.apply(shared.at[buffer][warp][Place::column()]);
        }
        carried = chain.after(carried);
        if constexpr (!kConfig.channels_last)
            if ((kForward ? Place::lane() : 31 - Place::lane()) > 0) start = state_after(before.log, start, before.added);
        return start;
    }
    __device__ __forceinline__ void swap_buffers() { buffer ^= 1; }
};

}  // namespace gdn_cuda::scan
