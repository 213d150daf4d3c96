// ssd/steps: how a chunk's tokens decay, for the kernels that scan: a chain of dependent operations that would take longer
// there than all products of a chunk.
//
//     δ_t = clamp(softplus(dt_t + dt_bias))        gate_t = sum of δA log2 e from the chunk's first token on
//
// A block has a chunk and 16 adjacent heads, a warp each, so that a sector of dt is read once. A lane has tokens 2 l and 2 l
// + 1. It also zeroes the counters of the kernel that follows, and its outputs of packed tokens that belong to no sequence,
// which would take launches of their own.
//
// Bound (computed): memory, 512 bytes a head and chunk, a hundredth of what the scan moves.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/uncovered_zeros.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/ssd/step_size.cuh>

namespace gdn_cuda::ssd {

__device__ __forceinline__ SlotWork work_of_chunk(const SsdStepsArgs& args, const SsdChunk& chunk) {
    return {.batch = args.cu_seqlens.data != nullptr ? 0 : chunk.sequence,
            .length = chunk.first + chunk.count,
            .first = chunk.first};
}
__device__ __forceinline__ SlotWork work_of_slot(const Tagged& cu_seqlens, int sequences, int tokens, int slot) {
    if (cu_seqlens.data == nullptr) {
        const int chunks = (tokens + kChunk - 1) / kChunk;
        return {.batch = slot / chunks, .length = tokens, .first = slot % chunks * kChunk};
    }
    for (int sequence = 0; sequence < sequences; ++sequence) {
        const Span span = span_of(cu_seqlens, sequence, tokens);
        const int chunk = slot - static_cast<int>(span.start / kChunk) - sequence;
        if (chunk >= 0 && chunk <= (span.length - 1) / kChunk && span.length > 0)
            return {.start = span.start, .length = span.length, .first = chunk * kChunk};
    }
    return {};
}

// A head's dt in a chunk, in flight.
struct RawSteps {
    RawElement dt[2];
    int count;  // tokens from the lane's first on

    __device__ __forceinline__ RawSteps(const SsdStepsArgs& args, const SlotWork& work, int head, int lane)
        : count(min(kChunk, work.length - work.first) - 2 * lane) {
        const i64 at = work.batch * args.dt_batch + (work.start + work.first + 2 * lane) * args.dt_token + head * args.dt_head;
        if (count > 0) dt[0].load(args.dt, at);
        if (count > 1) dt[1].load(args.dt, at + args.dt_token);
    }
    __device__ __forceinline__ float biased(const SsdStepsArgs& args, int i, float bias) const {
        return dt[i].to_float(args.dt.type) + bias;
    }
    // NaN stays.
    __device__ __forceinline__ float delta(const SsdStepsArgs& args, int i, float bias) const {
        return i < count ? step_size(args, biased(args, i, bias)) : 0.f;
    }
};

// Sums of the warp's 64 values from the first on.
__device__ __forceinline__ float2 inclusive_sums(float2 own, int lane) {
    float sum = own.x + own.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? before : 0.f;
    }
    const float preceding = __shfl_up_sync(0xffffffffu, sum, 1);
    return {own.x + (lane == 0 ? 0.f : preceding), sum};
}

// Whether the state is zeroed before a token.
__device__ __forceinline__ bool is_reset(const SsdStepsArgs& args, const SlotWork& work, int token) {
    if (args.seq_idx == nullptr) return false;
    const int* const at = args.seq_idx + work.batch * args.seq_idx_batch + token;
    return *at != (token == 0 ? 0 : at[-1]);
}

template <int kThreads>
__device__ __forceinline__ void clear_counters(const SsdStepsLaunch& args) {
    const i64 blocks = static_cast<i64>(gridDim.x) * gridDim.y;
    for (i64 i = (static_cast<i64>(blockIdx.y) * gridDim.x + blockIdx.x) * kThreads + threadIdx.x; i < args.counter_count;
         i += blocks * kThreads)
        args.counters[i] = 0;
}

// A pair of threads looks at every kThreads / 2th sequence, each for 32 of a chunk's tokens. Blocks of other heads zero other
// tokens.
template <int kThreads>
__device__ __forceinline__ void clear_uncovered(const SsdStepsLaunch& args) {
    __shared__ unsigned covered[kChunk / 32];
    const int thread = threadIdx.x, word = thread % 2, blocks = static_cast<int>(gridDim.y);
    for (i64 first = static_cast<i64>(blockIdx.x) * kChunk; first < args.tokens;
         first += static_cast<i64>(gridDim.x) * kChunk) {
        if (thread < 2) covered[thread] = 0;
        __syncthreads();
        const i64 own = first + 32 * word;
        unsigned bits = ~common::tokens_before(args.tokens, own);  // past the end
        for (int sequence = thread / 2; sequence < args.sequences; sequence += kThreads / 2) {
            const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
            bits |= common::tokens_before(span.start + span.length, own) & ~common::tokens_before(span.start, own);
        }
        if (bits != 0) atomicOr(&covered[word], bits);
        __syncthreads();
        for (int i = thread / 32 * blocks + static_cast<int>(blockIdx.y); i < kChunk; i += kThreads / 32 * blocks)
            if ((covered[i / 32] >> i % 32 & 1) == 0) common::clear_token(args.out, first + i, thread % 32);
        __syncthreads();  // the next chunk's
    }
}

template <SsdStepsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) steps(const __grid_constant__ SsdStepsLaunch args) {
    const int slot = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32,
              head = static_cast<int>(blockIdx.y) * kConfig.heads + threadIdx.x / 32;
    wait_on_dependent_grids();
    launch_dependent_grids();
    clear_counters<kConfig.threads()>(args);
    if (args.out.data != nullptr) clear_uncovered<kConfig.threads()>(args);
    if (head >= args.heads) return;
    const SlotWork work = args.chunks != nullptr ? work_of_chunk(args, args.chunks[slot])
                                                 : work_of_slot(args.cu_seqlens, args.sequences, args.tokens, slot);
    const RawSteps raw(args, work, head, lane);
    const float bias = bias_of(args, head), rate = load_float(args.A.values, head * args.A.head) * gdn::kLog2e;
    const float2 delta = {raw.delta(args, 0, bias), raw.delta(args, 1, bias)};
    // Clamped as in chunked/factors.cuh; what is clamped decays to 0.
    constexpr float kLowest = gdn::kLowestGateLog2;
    const auto gate_of = [&](int i, float delta) {  // past the end nothing decays, also if A is infinite
        if (i >= raw.count) return 0.f;
        return is_reset(args, work, work.first + 2 * lane + i) ? kLowest : at_least(delta * rate, kLowest);
    };
    const float2 gate = {gate_of(0, delta.x), gate_of(1, delta.y)};
    ChunkSteps& to = args.steps[static_cast<i64>(slot) * args.heads + head];
    reinterpret_cast<float2*>(to.gate)[lane] = inclusive_sums(gate, lane);
    reinterpret_cast<float2*>(to.delta)[lane] = delta;
}

}  // namespace gdn_cuda::ssd
