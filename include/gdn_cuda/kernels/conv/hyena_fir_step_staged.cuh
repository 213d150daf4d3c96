// conv/hyena_fir_step where the states of neighbouring channels, K − 1 numbers of fp32 each, are contiguous in a slot.
//
// A warp has 4 to 64 channels, so their states are one run of 16-byte units. It goes through shared memory by cp.async, and
// back from there: every access to the pool is of whole lines, although a row's K − 1 numbers are not aligned. A token moves no
// number: the run has a free place behind it, so that each row's token goes where the oldest number of the next row was, and
// from there on every row starts one place further. Behind the last token the run is read from that place on. While a sequence
// is computed, the next one's run is on its way to the other of two buffers. Warps share nothing.
//
// A lane has two short rows. Of longer ones, a warp multiplies one after the other, and then adds up their sums together.
//
// Bound by bytes, 2 (K − 1) numbers of state a row.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step_plan.cuh>

namespace gdn_cuda::conv {

// Lane l gets the sum of all lanes' sums[l % kCount].
template <int kCount>
__device__ __forceinline__ float sum_over_lanes(float (&sums)[kCount], int lane) {
    int count = kCount;
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
        if (count == 1) {
            sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], bit);
        } else {
            count /= 2;
#pragma unroll
            for (int i = 0; i < count; ++i) {
                const bool odd = lane & bit;
                const float sent = odd ? sums[2 * i] : sums[2 * i + 1], kept = odd ? sums[2 * i + 1] : sums[2 * i];
                sums[i] = kept + __shfl_xor_sync(0xffffffffu, sent, bit);
            }
        }
    }
    return sums[0];
}

template <HyenaFirStagedConfig kConfig>
struct FirWarp {
    using Io = Storage<kConfig.io>;
    static constexpr int kSums = kConfig.sums(), kElements = kConfig.elements, kUnitNumbers = HyenaStateUnit::kNumbers;
    static constexpr int kOwn = kConfig.lanes == 1 ? kSums : 1;  // rows whose tokens and outputs a lane has

    const HyenaFirStepArgs& args;
    int lane, first_channel;
    i64 sequence;                                                     // whose token is loaded next, and whose output `out` is
    int channels = min(kConfig.rows, args.channels - first_channel);  // of the warp
    int units = channels * args.width / kUnitNumbers;
    const Io* u = token(args.u, sequence);
    Io* out = token(args.out, sequence);
    float taps[kSums][kElements], current_tap[kOwn], bias[kOwn];

    __device__ __forceinline__ int own_row(int i) const { return kConfig.lanes == 1 ? i * 32 + lane : lane; }
    __device__ __forceinline__ bool has_row(int i) const { return own_row(i) < channels; }
    // The rows, and numbers of these, that this lane multiplies.
    __device__ __forceinline__ int row_of_sum(int i) const { return kConfig.lanes == 1 ? i * 32 + lane : i; }
    __device__ __forceinline__ int position(int e) const { return kConfig.lanes == 1 ? e : e * 32 + lane; }
    // Of the lane's first row.
    __device__ __forceinline__ Io* token(const HyenaTokens& x, i64 sequence) const {
        return static_cast<Io*>(const_cast<void*>(x.values.data)) + sequence * x.sequence +
               (first_channel + own_row(0)) * x.channel;
    }

    // All loads are in flight before the first is used.
    __device__ __forceinline__ void load_filter() {
        unsigned raw_taps[kSums][kElements]{}, raw_current[kOwn]{}, raw_bias[kOwn]{};
        const auto load_tap = [&](i64 weight, int position) {
            return load_raw(args.weight, weight + (args.flipped ? args.width - position : position) * args.weight_tap);
        };
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            if (row_of_sum(i) >= channels) continue;
            const i64 weight = (first_channel + row_of_sum(i)) / args.group_channels * args.weight_group;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                if (position(e) < args.width) raw_taps[i][e] = load_tap(weight, position(e));
        }
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            if (!has_row(i)) continue;
            const int channel = first_channel + own_row(i);
            raw_current[i] = load_tap(channel / args.group_channels * args.weight_group, args.width);
            if (args.bias.data != nullptr) raw_bias[i] = load_raw(args.bias, channel * args.bias_channel);
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i)
#pragma unroll
            for (int e = 0; e < kElements; ++e) taps[i][e] = number_of(raw_taps[i][e], args.weight.type);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            current_tap[i] = number_of(raw_current[i], args.weight.type);
            bias[i] = number_of(raw_bias[i], args.bias.type);
        }
    }

    // Calls `each` with the numbers of the units that this lane moves.
    template <class Each>
    __device__ __forceinline__ void each_unit(const Each& each) const {
#pragma unroll
        for (int i = 0; i < static_cast<int>(ceil_div(kConfig.units(), 32)); ++i)
            if (i * 32 + lane < units) each(i * 32 + lane);
    }

    // A sequence on its way: its run to a buffer, and its first token.
    struct Fetched {
        float* states = nullptr;  // the run in the pool
        Place place = Place::run;
        Io u[kOwn];
    };
    __device__ __forceinline__ Fetched fetch(HyenaStateUnit* run) {
        Fetched fetched;
        i64 slot = sequence;
        if (args.slots.data != nullptr) {
            slot = load_index(args.slots, sequence);
            fetched.place = place_of(args, slot);
        }
        if (fetched.place == Place::run) {
            fetched.states = static_cast<float*>(args.states) + slot * args.state_slot + first_channel * i64{args.width};
            each_unit([&](int unit) { cp_async_16(run + unit, fetched.states + unit * kUnitNumbers); });
            load_tokens(fetched.u, u);
        }
        cp_async_fence();
        u += args.u.sequence;
        ++sequence;
        return fetched;
    }
    __device__ __forceinline__ void load_tokens(Io (&to)[kOwn], const Io* from) const {
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
            if (has_row(i)) to[i] = from[i * 32 * args.u.channel];
    }
    __device__ __forceinline__ void store_tokens(Io* to, const float (&y)[kOwn]) const {
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
            if (has_row(i)) to[i * 32 * args.out.channel] = from_float<Io>(y[i]);
    }

    // Outputs of the rows, the first of which starts at `numbers`.
    __device__ __forceinline__ void multiply(float (&y)[kOwn], const float* numbers, const Io (&tokens)[kOwn]) const {
        float sums[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const float* window = numbers + row_of_sum(i) * args.width;
            sums[i] = 0.f;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                if (position(e) < args.width) sums[i] = fmaf(taps[i][e], window[position(e)], sums[i]);
        }
        if constexpr (kConfig.lanes > 1) sums[0] = sum_over_lanes(sums, lane);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const float u = to_float(tokens[i]), sum = fmaf(current_tap[i], u, sums[i]);
            y[i] = args.gated_bias ? fmaf(bias[i], u, sum) : sum + bias[i];
        }
    }
    __device__ __forceinline__ void walk_tokens(Fetched& fetched, HyenaStateUnit* run, const Io* following) const {
        float* const numbers = run->numbers;
        Io* to = out;
        int start = 0;  // of the first row's window
#pragma unroll 1
        for (int t = 0;; to += args.out.token) {
            float y[kOwn];
            multiply(y, numbers + start, fetched.u);
            store_tokens(to, y);
            __syncwarp();  // every row's oldest number has been read
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                if (has_row(i)) numbers[(own_row(i) + 1) * args.width + start] = to_float(fetched.u[i]);
            ++start;
            __syncwarp();
            if (++t == args.tokens) break;
            load_tokens(fetched.u, following + t * args.u.token);
            if (start == kUnitNumbers) {
                move_down(run);
                start = 0;
            }
        }
        store(fetched.states, run, start);
    }
    // The run starts a unit earlier.
    __device__ __forceinline__ void move_down(HyenaStateUnit* run) const {
#pragma unroll 1
        for (int first = 0; first < units; first += 32) {
            const int unit = min(first + lane, units - 1);
            const HyenaStateUnit moved = run[unit + 1];
            __syncwarp();
            run[unit] = moved;
            __syncwarp();
        }
    }
    // The run that starts at number `start`, of 1 to 4, goes back to the pool.
    __device__ __forceinline__ void store(float* states, const HyenaStateUnit* run, int start) const {
        switch (start) {
            case 1:
                return store_from<1>(states, run);
            case 2:
                return store_from<2>(states, run);
            case 3:
                return store_from<3>(states, run);
            default:
                return store_from<0>(states, run + 1);
        }
    }
    template <int kStart>
    __device__ __forceinline__ void store_from(float* states, const HyenaStateUnit* run) const {
        each_unit([&](int unit) {
            HyenaStateUnit both[2] = {run[unit]};
            if constexpr (kStart > 0) both[1] = run[unit + 1];
            Vector<float, kUnitNumbers, true> stored;
#pragma unroll
            for (int i = 0; i < kUnitNumbers; ++i)
                stored.items[i] = both[(kStart + i) / kUnitNumbers].numbers[(kStart + i) % kUnitNumbers];
            stored.store_global(states + unit * kUnitNumbers);
        });
    }
    // The output of a sequence that does not run.
    __device__ __forceinline__ void fill(Place place) const {
        float y[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) y[i] = place == Place::skip ? 0.f : quiet_nan();
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t) store_tokens(out + t * args.out.token, y);
    }
};

template <HyenaFirStagedConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads, kHyenaStagedBlocks)
    hyena_fir_step_staged(const __grid_constant__ HyenaFirStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaFirStagedSharedPlan<kConfig>*>(memory);
    const int of_warp = static_cast<int>(threadIdx.x) / 32;
    const unsigned blocks = static_cast<unsigned>(ceil_div(args.channels, kConfig.block_rows())), turn = blockIdx.x / blocks;
    const i64 first_channel = i64{blockIdx.x - turn * blocks} * kConfig.block_rows() + of_warp * kConfig.rows;
    if (first_channel >= args.channels) return;
    const i64 first = static_cast<i64>(turn) * args.block_sequences;
    const int count = static_cast<int>(min(i64{args.block_sequences}, args.sequences - first));

    FirWarp<kConfig> warp{args, static_cast<int>(threadIdx.x) % 32, static_cast<int>(first_channel), first};
    typename FirWarp<kConfig>::Fetched fetched = warp.fetch(shared.runs[of_warp][0]);
    warp.load_filter();
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const auto* const tokens = warp.u - args.u.sequence;
        typename FirWarp<kConfig>::Fetched next;
        if (i + 1 < count) {
            next = warp.fetch(shared.runs[of_warp][(i + 1) % 2]);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncwarp();  // every lane's units have arrived
        if (fetched.place == Place::run)
            warp.walk_tokens(fetched, shared.runs[of_warp][i % 2], tokens);
        else
            warp.fill(fetched.place);
        __syncwarp();  // the buffer is free
        warp.out += args.out.sequence;
        fetched = next;
    }
}

}  // namespace gdn_cuda::conv
