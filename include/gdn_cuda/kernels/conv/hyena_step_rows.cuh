// What the steps of Hyena share: which row a thread has, where its state is, and numbers of any dtype.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/conv/hyena_step_plan.cuh>

namespace gdn_cuda::conv {

__device__ __forceinline__ void store_number(void* to, DType type, i64 at, float x) {
    if (type == DType::f32)
        static_cast<float*>(to)[at] = x;
    else if (type == DType::bf16)
        static_cast<__nv_bfloat16*>(to)[at] = from_float<__nv_bfloat16>(x);
    else
        static_cast<__half*>(to)[at] = from_float<__half>(x);
}

// Threads behind the last row have none: they take part in shuffles, and neither load nor store.
struct HyenaStepRow {
    bool exists, runs;
    Place place;
    i64 sequence;
    int channel, group;
    i64 state;  // of its first number in the pool, in elements

    __device__ __forceinline__ HyenaStepRow(const HyenaStepArgs& args, i64 row) {
        exists = row < args.sequences * args.channels;
        sequence = exists ? row / args.channels : 0;
        channel = static_cast<int>(exists ? row - sequence * args.channels : 0);
        group = channel / args.group_channels;
        i64 slot = sequence;
        place = Place::run;
        if (exists && args.slots.data != nullptr) {
            slot = load_index(args.slots, sequence);
            place = place_of(args, slot);
        }
        runs = exists && place == Place::run;
        state = runs ? slot * args.state_slot + channel * args.state_channel : 0;
    }
    __device__ __forceinline__ i64 first(const HyenaTokens& x) const { return sequence * x.sequence + channel * x.channel; }
    // The output of a sequence that does not run.
    __device__ __forceinline__ void fill(const HyenaTokens& out, int tokens, int lane, int lanes) const {
        const float value = place == Place::skip ? 0.f : quiet_nan();
        for (int t = lane; t < tokens; t += lanes)
            store_number(const_cast<void*>(out.values.data), out.values.type, first(out) + t * out.token, value);
    }
};

}  // namespace gdn_cuda::conv
