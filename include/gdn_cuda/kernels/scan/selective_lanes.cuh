// scan/selective_lanes: selective_scan as scan/selective_forward computes it, for few channels or many states: tokens are
// spread over the lanes of a channel, instead of states. For real exponential decays and 16-bit tensors along tokens, in whole
// aligned vectors.
//
// A block of 128 threads iterates over the tiles of a sequence, for 4 to 16 channels. A lane has 8 or 16 consecutive tokens of
// a channel and keeps their steps, inputs and Σ C x in registers. For each state it computes decays and drives of its tokens
// and the state that they make of zero; a scan over the channel's lanes gives the state before each lane's tokens, and the lane
// advances it through them. B and C of the tile are in shared memory, 8 or 16 states at a time. Loads of the next ones, and of
// the next tile, are in flight meanwhile. Where there are more blocks than fit the GPU together, blocks of a sequence take
// turns at segments of it (Turns, in selective/inputs.cuh).
//
// The state before a tile decays over the tile by the exponential of the sum of its steps, so rounding does not add up.
//
// Bound: instruction issue and the special function unit, whose 18 exponentials (8 cycles of a scheduler each) and 142
// instructions are a state's updates of 16 tokens on each of 8 lanes. Measured with 64 states (8×5120×2048), 68 % of the cycles
// issued, and the exponentials alone take 62 % (docs/benchmarks/scan.md).
#pragma once

#include <gdn_cuda/kernels/common/counters.cuh>
#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/raw_vector.cuh>
#include <gdn_cuda/kernels/scan/discretization.cuh>
#include <gdn_cuda/kernels/scan/selective_lanes_plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveLanesConfig kConfig>
struct SelectiveLanes {
    using Config = SelectiveLanesConfig;
    using Shared = SelectiveLanesSharedPlan<kConfig>;
    using Poles = Pole<Transition::exponential, false>;
    using Vector = RawVector<8, true>;
    using InFlight = typename Shared::InFlight;
    static constexpr int kLanes = kConfig.lanes, kTokens = kConfig.tokens, kTile = kConfig.tile(), kGroup = kConfig.group;
    static constexpr int kThreads = kConfig.threads(), kChannels = kConfig.channels(), kAtOnce = kConfig.at_once,
                         kVectors = kTokens / 8;
    static constexpr int kStride = 32 / kLanes;  // a channel's lanes are so far apart: adjacent lanes read the same B and C
    static constexpr int kRounds = kLanes == 8 ? 3 : kLanes == 16 ? 4 : 5;
    static_assert(kLanes == 1 << kRounds);

    const SelectiveLanesArgs& args;
    const SelectiveInputs& in;
    Shared& shared;
    int sequence, first_channel, channels;
    int channel, lane;                // this thread's
    const char* own_coefficients[2];  // its first vectors of B and C

    float step[kTokens], input[kTokens], y[kTokens];
    // Sums of steps: of this lane and the 2^k − 1 before it; of all lanes before it.
    float sums[kRounds], before;

    __device__ __forceinline__ bool exists(int tile) const { return channel < channels && tile + lane * kTokens < in.length; }

    // ---- Elements. Vectors of a lane beyond the sequence's end do not exist: `in.length` is a multiple of eight.

    __device__ __forceinline__ char* address(const ChannelRows& x, int tile) const {
        return static_cast<char*>(x.data) +
               2 * (sequence * x.batch + (first_channel + channel) * x.channel + tile + lane * kTokens);
    }
    __device__ __forceinline__ int vectors(int tile) const {
        const int left = in.length - tile - lane * kTokens;
        return channel < channels ? left / 8 : 0;
    }
    __device__ __forceinline__ static void copy(InFlight& to, const char* from, bool exists) {
        cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(&to)), from, exists);
    }
    __device__ __forceinline__ void fetch(InFlight (&to)[kVectors][kThreads], const ChannelRows& x, int tile) const {
        const char* from = address(x, tile);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) copy(to[i][threadIdx.x], from + 16 * i, i < vectors(tile));
    }
    __device__ __forceinline__ void floats(float (&to)[kTokens], const InFlight (&from)[kVectors][kThreads]) const {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            float x[8];
            reinterpret_cast<const Vector&>(from[i][threadIdx.x]).to_floats(args.io, x);
#pragma unroll
            for (int j = 0; j < 8; ++j) to[8 * i + j] = x[j];
        }
    }
    __device__ __forceinline__ void prepare(int tile, float bias) {
        floats(input, shared.u[tile / kTile & 1]);
        floats(step, shared.delta);
#pragma unroll
        for (float& x : step) x += bias;
        if (in.delta_softplus) {
#pragma unroll
            for (float& x : step) x = softplus_fast(x);
        }
        if (args.input_times_delta) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i) input[i] *= step[i];
        }
        if (const int count = 8 * vectors(tile); count < kTokens) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i)  // a step of 0 leaves the states as they are
                if (i >= count) step[i] = input[i] = 0.f;
        }
#pragma unroll
        for (float& x : y) x = 0.f;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kTokens; i += 4) sum += (step[i] + step[i + 1]) + (step[i + 2] + step[i + 3]);
#pragma unroll
        for (int k = 0; k < kRounds; ++k) {
            sums[k] = sum;
            const float more = __shfl_up_sync(0xffffffffu, sum, kStride << k);
            if (lane >= 1 << k) sum += more;
        }
        if (lane == kLanes - 1) shared.steps[channel] = sum;
        before = __shfl_up_sync(0xffffffffu, sum, kStride);
        if (lane == 0) before = 0.f;
    }
    __device__ __forceinline__ void finish(int tile, float D) {
        float x[kTokens];
        floats(x, shared.u[tile / kTile & 1]);
#pragma unroll
        for (int i = 0; i < kTokens; ++i) y[i] = fmaf(D, x[i], y[i]);
        if (in.z.data != nullptr) {
            floats(x, shared.z);
#pragma unroll
            for (int i = 0; i < kTokens; ++i) y[i] *= silu_fast(x[i]);
        }
        char* to = address(args.out, tile);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            float part[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) part[j] = y[8 * i + j];
            if (i < vectors(tile)) Vector::of(args.io, part).store(to + 16 * i, args.io);
        }
    }

    // ---- B and C

    // A thread's vectors of either are rows apart.
    static constexpr int kVectorsOfRow = kTile / 8, kRowsApart = kThreads / kVectorsOfRow;
    __device__ __forceinline__ static int own_row() { return static_cast<int>(threadIdx.x) / kVectorsOfRow; }
    __device__ __forceinline__ static int own_token() { return static_cast<int>(threadIdx.x) % kVectorsOfRow * 8; }
    template <class F>
    __device__ __forceinline__ void each_vector(const F& call) const {
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int n = 0; n < kGroup; n += kRowsApart)
                call(which, own_row() + n, shared.coefficients_in_flight[(which * kGroup + n) / kRowsApart][threadIdx.x]);
    }
    __device__ __forceinline__ const char* coefficients(const Coefficients& x) const {
        return static_cast<const char*>(x.data) +
               2 * (sequence * x.batch + first_channel / (in.dim / x.groups) * x.group + own_row() * x.n + own_token());
    }
    __device__ __forceinline__ void fetch_coefficients(int tile, int first) const {
        const bool is_token = tile + own_token() < in.length;
        each_vector([&](int which, int n, InFlight& to) {
            const i64 row = 2 * (which == 0 ? in.B : in.C).n;
            copy(to, own_coefficients[which] + 2 * tile + (first + n - own_row()) * row, is_token && first + n < in.state_size);
        });
    }
    __device__ __forceinline__ void put_coefficients() const {
        each_vector([&](int which, int n, const InFlight& from) {
            float x[8];
            reinterpret_cast<const Vector&>(from).to_floats((which == 0 ? in.B : in.C).type, x);
            auto* to = reinterpret_cast<float4*>(shared.coefficients[which][n]) + own_token() % kTokens / 4 * kLanes +
                       own_token() / kTokens;
            to[0] = {x[0], x[1], x[2], x[3]};
            to[kLanes] = {x[4], x[5], x[6], x[7]};
        });
    }
    __device__ __forceinline__ float4 four(int which, int n, int part) const {
        return reinterpret_cast<const float4*>(shared.coefficients[which][n])[part * kLanes + lane];
    }

    // ---- The recurrence

    __device__ __forceinline__ i64 state_at(i64 row, int n) const {
        return (row * in.dim + first_channel + channel) * in.state_size + n;
    }
    // Advances kAtOnce states of a group through the tile. kKeeps: stores the states before chunks.
    template <bool kKeeps>
    __device__ __forceinline__ void advance(int tile, int first, int n) {
        float decay[kAtOnce][kTokens], drive[kAtOnce][kTokens], rate[kAtOnce], x[kAtOnce], product[kAtOnce], start[kAtOnce];
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            rate[s] = shared.rates[first + n + s][channel];
#pragma unroll
            for (int t = 0; t < kTokens; t += 4) {
                const float4 B = four(0, n + s, t / 4);
                const float values[4] = {B.x, B.y, B.z, B.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    decay[s][t + j] = exp2_fast(step[t + j] * rate[s]);
                    drive[s][t + j] = input[t + j] * values[j];
                }
            }
            product[s] = exp2_fast(sums[0] * rate[s]);
            start[s] = exp2_fast(before * rate[s]) * shared.states[first + n + s][channel];
            x[s] = drive[s][0];
        }
#pragma unroll
        for (int t = 1; t < kTokens; ++t)
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) x[s] = fmaf(decay[s][t], x[s], drive[s][t]);
#pragma unroll
        for (int k = 0; k < kRounds; ++k)
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const float earlier = __shfl_up_sync(0xffffffffu, x[s], kStride << k);
                if (k + 1 == kRounds) {
                    if (lane >= 1 << k) x[s] = fmaf(product[s], earlier, x[s]);
                } else {
                    const float more = __shfl_up_sync(0xffffffffu, product[s], kStride << k);
                    if (lane >= 1 << k) x[s] = fmaf(product[s], earlier, x[s]), product[s] *= more;
                }
            }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
            if (lane == kLanes - 1) shared.ends[n + s][channel] = x[s];
            const float earlier = __shfl_up_sync(0xffffffffu, x[s], kStride);
            if (lane > 0) start[s] += earlier;
            x[s] = start[s];
        }
        if (kKeeps && (tile + lane * kTokens) % kStateChunk == 0 && exists(tile)) {
            const i64 chunks = (in.length + kStateChunk - 1) / kStateChunk,
                      row = sequence * chunks + (tile + lane * kTokens) / kStateChunk;
            float* to = static_cast<float*>(args.states) + state_at(row, first + n);
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s)
                if (first + n + s < in.state_size) to[s] = start[s];
        }
#pragma unroll
        for (int t = 0; t < kTokens; t += 4)
#pragma unroll
            for (int s = 0; s < kAtOnce; ++s) {
                const float4 C = four(1, n + s, t / 4);
                const float values[4] = {C.x, C.y, C.z, C.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    x[s] = fmaf(decay[s][t + j], x[s], drive[s][t + j]);
                    y[t + j] = fmaf(values[j], x[s], y[t + j]);
                }
            }
    }
    template <bool kKeeps>
    __device__ __forceinline__ void advance_group(int tile, int first) {
#pragma unroll 1
        for (int n = 0; n < kGroup; n += kAtOnce) advance<kKeeps>(tile, first, n);
    }
    // Calls `call` with each state of the group and its channel, of the warp's; lanes share them.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
        const int thread = threadIdx.x % 32, own = static_cast<int>(threadIdx.x) / 32 * kStride;
#pragma unroll
        for (int i = thread; i < kGroup * kStride; i += 32) call(i / kStride, own + i % kStride);
    }
    // The states after the tile.
    __device__ __forceinline__ void carry(int first) const {
        __syncwarp();
        each_state([&](int n, int channel) {
            float& x = shared.states[first + n][channel];
            const float total = shared.steps[channel], end = shared.ends[n][channel];
            const Poles pole{shared.rates[first + n][channel], 0.f};
            float relative;
            x = pole.long_memory(total, relative) ? x + fmaf(relative, x, end) : fmaf(exp2_fast(total * pole.rate), x, end);
        });
        __syncwarp();
    }

    __device__ __forceinline__ void run() {
        const bool is_channel = channel < channels;
        const float bias = is_channel && in.delta_bias != nullptr ? in.delta_bias[first_channel + channel] : 0.f,
                    D = is_channel && in.D != nullptr ? in.D[first_channel + channel] : 0.f;
        own_coefficients[0] = coefficients(in.B), own_coefficients[1] = coefficients(in.C);
        const int segment = blockIdx.z, begin = segment * args.segments.length;
        const int end = segment + 1 == args.segments.count ? in.length : begin + args.segments.length;
        fetch(shared.u[begin / kTile & 1], in.u, begin);
        fetch(shared.delta, in.delta, begin);
        fetch_coefficients(begin, 0);
        cp_async_fence();
        const i64 row = static_cast<i64>(sequence) * in.dim + first_channel, rows = static_cast<i64>(in.sequences) * in.dim;
        const auto* initial = static_cast<const float*>(in.initial_state);
        const auto turn = [&](int segment) {
            return args.turns.done + (static_cast<i64>(segment) * in.sequences + sequence) * gridDim.x + blockIdx.x;
        };
        if (segment > 0) {
            initial = static_cast<const float*>(args.turns.states) + segment * rows * in.state_size;
            if (threadIdx.x == 0) wait_for_count(turn(segment), args.turns.wanted);
            __syncthreads();
        }
#pragma unroll 1
        for (int group = 0; group < in.state_size; group += kGroup)
#pragma unroll
            for (int i = threadIdx.x; i < kGroup * kChannels; i += kThreads) {
                const int n = group + i % kGroup, c = i / kGroup;
                const bool is_state = n < in.state_size && c < channels;
                const auto* A = static_cast<const float*>(in.A.data);
                shared.rates[n][c] = is_state ? A[(first_channel + c) * in.A.group + n * in.A.n] * kLog2e : 0.f;
                shared.states[n][c] = is_state && initial != nullptr ? initial[(row + c) * in.state_size + n] : 0.f;
            }
        int tile = begin, first = 0;
#pragma unroll 1
        while (tile < end) {
            const bool is_last = first + kGroup >= in.state_size;
            const int next_tile = is_last ? tile + kTile : tile, next_first = is_last ? 0 : first + kGroup;
            cp_async_wait<0>();
            if (first == 0) prepare(tile, bias);
            __syncthreads();  // all warps have read the previous group's B and C
            put_coefficients();
            if (is_last && in.z.data != nullptr) fetch(shared.z, in.z, tile);
            cp_async_fence();
            if (next_tile < end) {
                if (is_last) {
                    fetch(shared.u[next_tile / kTile & 1], in.u, next_tile);
                    fetch(shared.delta, in.delta, next_tile);
                }
                fetch_coefficients(next_tile, next_first);
            }
            cp_async_fence();
            __syncthreads();
            if (args.states == nullptr)
                advance_group<false>(tile, first);
            else
                advance_group<true>(tile, first);
            carry(first);
            if (is_last) {
                cp_async_wait<1>();  // for z
                finish(tile, D);
            }
            tile = next_tile, first = next_first;
        }
        __syncthreads();
        const int next = opaque(static_cast<int>(blockIdx.z)) + 1;  // recomputed, as registers are short above
        const bool is_last_segment = next == args.segments.count;
        float* const last = is_last_segment ? static_cast<float*>(args.last_state)
                                            : static_cast<float*>(args.turns.states) + next * rows * in.state_size;
#pragma unroll 1
        for (int i = threadIdx.x; i < in.state_size * channels; i += kThreads)
            last[row * in.state_size + i] = shared.states[i % in.state_size][i / in.state_size];
        if (is_last_segment) return;
        __syncthreads();
        if (threadIdx.x == 0) red_release(turn(next));
    }
};

// For Blackwell the compiler needs more registers than Hopper's number of blocks leaves.
template <SelectiveLanesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_per_multiprocessor() - (kCompiledCapability > 90 ? 1 : 0))
    selective_lanes(const __grid_constant__ SelectiveLanesArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveLanesSharedPlan<kConfig>*>(memory);
    constexpr int kChannels = kConfig.channels(), kStride = 32 / kConfig.lanes;
    const int blocks_per_span = (args.span + kChannels - 1) / kChannels;
    const int block = blockIdx.x, inside = block % blocks_per_span * kChannels;
    const int thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Opaque, so that channel and lane are kept, not recomputed for every state.
    SelectiveLanes<kConfig>{.args = args,
                            .in = args.in,
                            .shared = shared,
                            .sequence = static_cast<int>(blockIdx.y),
                            .first_channel = block / blocks_per_span * args.span + inside,
                            .channels = min(args.span - inside, kChannels),
                            .channel = opaque(warp * kStride + thread % kStride),
                            .lane = opaque(thread / kStride)}
        .run();
}

}  // namespace gdn_cuda::scan
