// What ssd/backward and ssd/backward_mma do in the same way, however they multiply: the block's chunk, and the gradients of dt
// and of the parameters from sums over a head's channels.
#pragma once

#include <gdn_cuda/kernels/common/pairs.cuh>
#include <gdn_cuda/kernels/ssd/gradients_plan.cuh>
#include <gdn_cuda/kernels/ssd/steps.cuh>

namespace gdn_cuda::ssd {

__device__ __forceinline__ SsdChunkWork chunk_work(const SsdGradientArgs& args) {
    const int slot = static_cast<int>(blockIdx.x), group = static_cast<int>(blockIdx.y);
    const int group_tiles = args.heads / args.groups * args.tiles_of_head;
    const SlotWork place = work_of_slot(args.cu_seqlens, args.sequences, args.tokens, slot);
    const int count = min(kChunk, place.length - place.first);
    return {.group = group,
            .first_tile = group * group_tiles,
            .tiles = group_tiles,
            .place = place,
            .slot = slot,
            .count = count,
            .has_tail = args.cu_seqlens.data != nullptr && count < kChunk};
}
__device__ __forceinline__ int head_of(const SsdGradientArgs& args, const SsdChunkWork& work, int tile) {
    return (work.first_tile + tile) / args.tiles_of_head;
}
// The tile's first channel in its head.
__device__ __forceinline__ int row_of(const SsdGradientArgs& args, const SsdChunkWork& work, int tile) {
    return (work.first_tile + tile) % args.tiles_of_head * kTileRows;
}
// The chunk's first token among all.
__device__ __forceinline__ i64 first_token(const SsdGradientArgs& args, const SsdChunkWork& work) {
    return static_cast<i64>(work.place.batch) * args.tokens + work.place.start + work.place.first;
}

// Clears the sums of a slot between sequences. By all threads.
template <int kThreads>
__device__ __forceinline__ void clear_sums(const SsdGradientArgs& args, const SsdChunkWork& work) {
    for (int i = threadIdx.x; i < 3 * work.tiles / args.tiles_of_head; i += kThreads) {
        const int heads = work.tiles / args.tiles_of_head;
        args.sums[(static_cast<i64>(i / heads) * args.slots + work.slot) * args.heads + work.group * heads + i % heads] = 0.f;
    }
}

// Sums over the tokens from each one on, and over those before it; a lane has tokens 2 lane and 2 lane + 1.
__device__ __forceinline__ float2 sums_from(float2 own, int lane) {
    float sum = own.x + own.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float more = __shfl_down_sync(0xffffffffu, sum, step);
        sum += lane + step < 32 ? more : 0.f;
    }
    const float next = __shfl_down_sync(0xffffffffu, sum, 1), later = own.y + (lane == 31 ? 0.f : next);
    return {own.x + later, later};
}
__device__ __forceinline__ float2 sums_before(float2 own, int lane) {
    const float2 upto = inclusive_sums(own, lane);
    const float previous = __shfl_up_sync(0xffffffffu, upto.y, 1), before = lane == 0 ? 0.f : previous;
    return {before, before + own.x};
}

// For each token t, the sum of Z_ij over j < t <= i. Z: 16 rows, the thread's from `row` on and 8 further, and 8 columns for
// each n from `first_column` on, as an accumulator has them. adds: to what is there.
template <int kElements>
__device__ __forceinline__ void store_across(float (&to)[kChunk], const float (&Z)[kElements], int row, int first_column,
                                             int lane, bool adds = false) {
    constexpr int kColumns8 = kElements / 4;
    constexpr unsigned kAll = 0xffffffffu;
    const int g = lane / 4, t = lane % 4;
    float before[2] = {0.f, 0.f};  // of the row, over the columns of earlier n
    const auto store = [&](float2 sum, int column) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            sum.x += __shfl_xor_sync(kAll, sum.x, step);
            sum.y += __shfl_xor_sync(kAll, sum.y, step);
        }
        if (g > 0) return;
        auto& stored = *reinterpret_cast<float2*>(&to[column]);
        stored = adds ? float2{stored.x + sum.x, stored.y + sum.y} : sum;
    };
#pragma unroll
    for (int n = 0; n < kColumns8; ++n) {
        const int column = first_column + 8 * n + 2 * t;
        float2 sum = {0.f, 0.f};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float first = Z[4 * n + 2 * half], pair = first + Z[4 * n + 2 * half + 1];
            float upto = pair;
            const float one = __shfl_up_sync(kAll, upto, 1);
            if (t >= 1) upto += one;
            const float two = __shfl_up_sync(kAll, upto, 2);
            if (t >= 2) upto += two;
            const float preceding = __shfl_up_sync(kAll, upto, 1);
            const float own = before[half] + (t == 0 ? 0.f : preceding);
            before[half] += __shfl_sync(kAll, upto, lane | 3);
            const int token = row + 8 * half;
            if (token >= column) sum.x += own;
            if (token >= column + 1) sum.y += own + first;
        }
        store(sum, column);
    }
    if constexpr (8 * kColumns8 < kChunk)  // other columns: nothing is before the first, and everything before the later ones
#pragma unroll 1
        for (int other = 0; other < kChunk; other += 8) {
            if (other >= first_column && other < first_column + 8 * kColumns8) continue;
            const int column = other + 2 * t;
            float2 sum = {0.f, 0.f};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = row + 8 * half;
                if (other > first_column && token >= column) sum.x += before[half];
                if (other > first_column && token >= column + 1) sum.y += before[half];
            }
            store(sum, column);
        }
}

// Over a head's channels and states, for the tokens 2 lane and 2 lane + 1 of a warp's lanes.
struct HeadSums {
    float2 read;     // of the state before, by outputs
    float2 written;  // into the state after
    float2 scaled;   // of the token's own δ x
    float2 across;   // between tokens before and after each boundary
    float states;    // <E, S>
    float D;
};

// From the gradient of δ to dt's.
__device__ __forceinline__ float step_gradient(const SsdStepsArgs& args, const RawSteps& raw, int i, float bias,
                                               float gradient) {
    if (i >= raw.count) return 0.f;
    const float x = raw.biased(args, i, bias);
    const float step = args.softplus ? softplus(x) : x;
    if (step < args.lowest || step > args.highest) return 0.f;
    return args.softplus && x <= 20.f ? gradient * sigmoid(x) : gradient;
}
// What a head's gradients need of memory, in flight.
struct HeadInputs {
    RawSteps raw;
    float bias, A;

    __device__ __forceinline__ HeadInputs(const SsdGradientArgs& args, const SsdChunkWork& work, int head, int lane)
        : raw(args, work.place, head, lane), bias(bias_of(args, head)), A(load_float(args.A.values, head * args.A.head)) {}
};
// δA of token t decays all that passes from before t to t or after. By a warp. decay: exp(G_end).
__device__ __forceinline__ void store_step_gradients(const SsdGradientArgs& args, const SsdChunkWork& work, int head,
                                                     const HeadInputs& inputs, const HeadSums& found, float2 delta, float decay,
                                                     int lane) {
    const float2 later = sums_from(found.read, lane), earlier = sums_before(found.written, lane);
    const float passing = decay == 0.f ? 0.f : decay * found.states;
    const auto& [raw, bias, A] = inputs;
    const float2 gates = {later.x + earlier.x + passing + found.across.x, later.y + earlier.y + passing + found.across.y};
    const float ddt[2] = {step_gradient(args, raw, 0, bias, fmaf(A, gates.x, found.scaled.x)),
                          step_gradient(args, raw, 1, bias, fmaf(A, gates.y, found.scaled.y))};
    float sums[3] = {delta.x * gates.x + delta.y * gates.y, ddt[0] + ddt[1], found.D};
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], step);
        sums[1] += __shfl_xor_sync(0xffffffffu, sums[1], step);
    }
    const i64 token = first_token(args, work) + 2 * lane;
    for (int i = 0; i < 2; ++i)
        if (i < raw.count) args.ddt[(token + i) * args.heads + head] = ddt[i];
    if (lane == 0)
        for (int i = 0; i < 3; ++i) args.sums[(static_cast<i64>(i) * args.slots + work.slot) * args.heads + head] = sums[i];
}

}  // namespace gdn_cuda::ssd
