// The steps δ and decays of a head's chunk, by a warp: lane l has tokens 2 l and 2 l + 1.
#pragma once

#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/ssd/prefill_plan.cuh>

namespace gdn_cuda::ssd {

using gdn::kLowestGateLog2;

__device__ __forceinline__ int dt_bytes(const SsdSteps& args) {
    return args.dt.type == DType::f32 ? 4 : 2;
}
__device__ __forceinline__ HeadSteps head_steps(const SsdSteps& args, i64 batch, i64 start, int head) {
    const i64 first = batch * args.dt_batch + start * args.dt_token + head * args.dt_head;
    return {.bias = args.dt_bias.values.data == nullptr ? 0.f : load_float(args.dt_bias.values, head * args.dt_bias.head),
            .rate = load_float(args.A.values, head * args.A.head) * gdn::kLog2e,
            .dt = static_cast<const char*>(args.dt.data) + first * dt_bytes(args)};
}

struct ChunkSteps {
    RawElement dt[2];  // in flight

    // `first`: the chunk's first token in its sequence, `count`: how many tokens from the lane's first on exist.
    __device__ __forceinline__ void load(const SsdSteps& args, const char* head_dt, int first, int lane, int count) {
        dt[0] = dt[1] = {};
        const i64 token_bytes = args.dt_token * dt_bytes(args);
        const char* const at = head_dt + (first + 2 * lane) * token_bytes;
        if (count > 0) dt[0].load(at, args.dt.type == DType::f32);
        if (count > 1) dt[1].load(at + token_bytes, args.dt.type == DType::f32);
    }
    __device__ __forceinline__ float biased(const SsdSteps& args, int i, float bias) const {
        return dt[i].to_float(args.dt.type) + bias;
    }
    // Tokens past the end have a δ of 0: nothing decays, and nothing is added.
    __device__ __forceinline__ float delta(const SsdSteps& args, int i, float bias, int count) const {
        float x = biased(args, i, bias);
        // softplus without its select above 20, which changes no bit and would be a branch.
        if (args.softplus) x = fmaxf(x, 0.f) + log1p_of_unit(exp_fast(-fabsf(x)));
        return i < count ? at_most(at_least(x, args.lowest), args.highest) : 0.f;
    }
};

// Whether the state is zeroed before a token of `work`, a sequence's batch and length.
template <class Work>
__device__ __forceinline__ bool is_reset(const SsdSteps& args, const Work& work, int token) {
    if (token >= work.length) return false;
    const int* const at = args.seq_idx + work.batch * args.seq_idx_batch + token;
    return *at != (token == 0 ? 0 : at[-1]);
}
// log2 of tokens' decays, clamped as in chunked/factors.cuh; what is clamped decays to 0. `token`: the first.
template <class Work>
__device__ __forceinline__ float2 gates_of(const SsdSteps& args, const Work& work, float2 delta, float rate, int token) {
    float2 own = {at_least(delta.x * rate, kLowestGateLog2), at_least(delta.y * rate, kLowestGateLog2)};
    if (args.seq_idx != nullptr) {
        if (is_reset(args, work, token)) own.x = kLowestGateLog2;
        if (is_reset(args, work, token + 1)) own.y = kLowestGateLog2;
    }
    return own;
}
// Inclusive sums over the warp's 64 values from the first on, and the whole sum.
__device__ __forceinline__ float2 inclusive_sums(float2 own, int lane, float& whole) {
    float sum = own.x + own.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? before : 0.f;
    }
    whole = __shfl_sync(0xffffffffu, sum, 31);
    const float preceding = __shfl_up_sync(0xffffffffu, sum, 1);
    return {own.x + (lane == 0 ? 0.f : preceding), sum};
}

}  // namespace gdn_cuda::ssd
