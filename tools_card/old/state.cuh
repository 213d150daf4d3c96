// A value warpgroup's rows of the state in the caller's tensors: where they are read and written, and when they may be.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/chunked/state_place.cuh>
#include <gdn_cuda/kernels/hopper/counters.cuh>
#include <gdn_cuda/kernels/recurrence/states.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ StatePlace place_of_head(const Owner& own, const void* states) {
    const i64 before = static_cast<i64>(own.work.head) * own.args.call.dv * own.args.call.dk;
    auto* data = static_cast<char*>(const_cast<void*>(states));
    return {data == nullptr ? nullptr : data + before * bytes_of(own.args.state), own.args.state};
}
template <class Owner>
__device__ __forceinline__ StatePlace initial_state(const Owner& own) {
    const char* data = static_cast<const char*>(own.args.call.initial.data);
    return place_of_head(own, data == nullptr || !own.work.states.begins
                                  ? nullptr
                                  : data + own.work.states.initial_slot * bytes_of(own.args.state));
}
template <class Owner>
__device__ __forceinline__ StatePlace final_state(const Owner& own) {
    const char* data = static_cast<const char*>(own.args.call.last.data);
    return place_of_head(
        own, data == nullptr || !own.work.states.ends ? nullptr : data + own.work.states.last_slot * bytes_of(own.args.state));
}
// Whether the state after a chunk may have to be stored: few instructions in every chunk.
template <class Owner>
__device__ __forceinline__ bool ends_checkpoint(const Owner& own, int chunk) {
    return own.args.step_interval.divides(own.work.tokens.before + end_of<Owner::kConfig>(own.work.tokens, chunk));
}
// Where it is stored, if it is.
template <class Owner>
__device__ __forceinline__ StatePlace checkpoint(const Owner& own, int chunk) {
    const ChunkedWork& work = own.work;
    if (chunk < work.tokens.first_output || end_of<Owner::kConfig>(work.tokens, chunk) > work.tokens.length) return {};
    const int token = work.tokens.before + end_of<Owner::kConfig>(work.tokens, chunk) - 1;
    const auto step = [&]<class T>(T) {
        return static_cast<const void*>(step_state<T>(own.args.call, work.sequence, work.states.checkpoints_before, token));
    };
    return place_of_head(own, own.args.state == DType::f32 ? step(float{}) : step(__nv_bfloat16{}));
}

template <class Owner>
__device__ __forceinline__ void load_state(Owner& own, const StatePlace& from) {
    clear_fragment(own.state);
    if (from.data == nullptr) return;
    if (from.type == DType::f32)
        load_fragment(own.state, own, static_cast<const float*>(from.data));
    else
        load_fragment(own.state, own, static_cast<const __nv_bfloat16*>(from.data));
}
template <class Owner>
__device__ __forceinline__ void store_state(Owner& own, const StatePlace& to) {
    if (to.data == nullptr) return;
    if (to.type == DType::f32)
        store_fragment(own.state, own, static_cast<float*>(to.data));
    else
        store_fragment(own.state, own, static_cast<__nv_bfloat16*>(to.data));
}

// Counts readers of the initial state; where states are updated in place, the last segment waits for them before it writes.
__device__ __forceinline__ unsigned* readers_of(const ChunkedArgs& args, const ChunkedWork& work) {
    return args.readers + (static_cast<i64>(work.sequence) * args.call.heads + work.head) * gridDim.x + blockIdx.x;
}
template <class Owner>
__device__ __forceinline__ void signal_initial_state_read(const Owner& own) {
    if (Owner::kConfig.persistent || own.args.readers == nullptr || !own.is_pass(ChunkedPass::outputs)) return;
    own.warpgroup_sync();
    if (own.thread == 0) red_release(readers_of(own.args, own.work));
}
template <class Owner>
__device__ __forceinline__ void wait_for_readers(const Owner& own) {
    if (!Owner::kConfig.persistent && own.is_pass(ChunkedPass::outputs) && own.work.states.ends &&
        own.args.readers != nullptr) {
        if (own.thread == 0) wait_for_count(readers_of(own.args, own.work), own.work.states.readers);
        own.warpgroup_sync();
    }
}

}  // namespace gdn_cuda::gdn
