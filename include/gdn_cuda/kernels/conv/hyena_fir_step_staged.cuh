// conv/hyena_fir_step where the states of neighbouring channels, K − 1 numbers of fp32 each, are contiguous in a slot.
//
// A warp has 4 to 32 channels, so their states are one run of 16-byte units. It goes through shared memory by cp.async, and
// back from there: every access to the pool is of whole lines, although a row's K − 1 numbers are not aligned. A token moves no
// number: the run has a free place behind it, so that each row's token goes where the oldest number of the next row was, and
// from there on every row starts one place further. Behind the last token the run is read from that place on. While a sequence
// is computed, the next one's run is on its way to the other of two buffers. Warps share nothing.
//
// Short rows have a lane each. Of longer ones, a warp computes one after the other, and their sums together.
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

    const HyenaFirStepArgs& args;
    int lane, first_channel;
    int channels = min(kConfig.rows, args.channels - first_channel);  // of the warp
    int units = channels * args.width / kUnitNumbers;
    float taps[kSums][kElements]{}, current_tap = 0.f, bias = 0.f;

    // The row whose token and output this lane has, which other lanes may have too, and its channel.
    __device__ __forceinline__ int row() const { return lane % kConfig.rows; }
    __device__ __forceinline__ int channel() const { return first_channel + row(); }
    __device__ __forceinline__ bool has_row() const { return lane < channels; }
    // The rows, and numbers of these, that this lane multiplies.
    __device__ __forceinline__ int row_of_sum(int i) const { return kConfig.lanes == 1 ? lane : i; }
    __device__ __forceinline__ int position(int e) const { return e * kConfig.lanes + lane % kConfig.lanes; }

    __device__ __forceinline__ void load_filter() {
        const auto tap = [&](int channel, int position) {
            return load_number(args.weight, channel / args.group_channels * args.weight_group +
                                                (args.flipped ? args.width - position : position) * args.weight_tap);
        };
#pragma unroll
        for (int i = 0; i < kSums; ++i)
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                if (row_of_sum(i) < channels && position(e) < args.width)
                    taps[i][e] = tap(first_channel + row_of_sum(i), position(e));
        if (!has_row()) return;
        current_tap = tap(channel(), args.width);
        if (args.bias.data != nullptr) bias = load_number(args.bias, channel() * args.bias_channel);
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
        Io u{};
    };
    __device__ __forceinline__ Fetched fetch(i64 sequence, HyenaStateUnit* run) const {
        Fetched fetched;
        i64 slot = sequence;
        if (args.slots.data != nullptr) {
            slot = load_index(args.slots, sequence);
            fetched.place = place_of(args, slot);
        }
        if (fetched.place == Place::run) {
            fetched.states = static_cast<float*>(args.states) + slot * args.state_slot + first_channel * i64{args.width};
            each_unit([&](int unit) { cp_async_16(run + unit, fetched.states + unit * kUnitNumbers); });
            if (has_row()) fetched.u = token(args.u, sequence)[0];
        }
        cp_async_fence();
        return fetched;
    }
    __device__ __forceinline__ Io* token(const HyenaTokens& x, i64 sequence) const {
        return static_cast<Io*>(const_cast<void*>(x.values.data)) + sequence * x.sequence + channel() * x.channel;
    }

    // The row's output, where its window starts at `numbers`.
    __device__ __forceinline__ float output(const float* numbers, float u) const {
        float sums[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const float* window = numbers + row_of_sum(i) * args.width;
            sums[i] = 0.f;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                if (position(e) < args.width) sums[i] = fmaf(taps[i][e], window[position(e)], sums[i]);
        }
        const float sum = fmaf(current_tap, u, kConfig.lanes == 1 ? sums[0] : sum_over_lanes(sums, lane));
        return args.gated_bias ? fmaf(bias, u, sum) : sum + bias;
    }
    __device__ __forceinline__ void walk_tokens(i64 sequence, const Fetched& fetched, HyenaStateUnit* run) const {
        float* const numbers = run->numbers;
        const Io* from = token(args.u, sequence);
        Io* to = token(args.out, sequence);
        float u = to_float(fetched.u);
        int start = 0;  // of the first row's window
#pragma unroll 1
        for (int t = 0;; to += args.out.token) {
            const float y = output(numbers + start, u);
            if (has_row()) *to = from_float<Io>(y);
            __syncwarp();  // every row's oldest number has been read
            if (lane < kConfig.rows) numbers[(row() + 1) * args.width + start] = u;
            ++start;
            __syncwarp();
            if (++t == args.tokens) break;
            from += args.u.token;
            u = has_row() ? to_float(*from) : 0.f;
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
    __device__ __forceinline__ void fill(i64 sequence, Place place) const {
        if (!has_row()) return;
        const Io y = from_float<Io>(place == Place::skip ? 0.f : quiet_nan());
        Io* to = token(args.out, sequence);
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t, to += args.out.token) *to = y;
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
    const i64 first = static_cast<i64>(turn) * args.block_sequences, end = min(first + args.block_sequences, args.sequences);

    FirWarp<kConfig> warp{args, static_cast<int>(threadIdx.x) % 32, static_cast<int>(first_channel)};
    HyenaStateUnit *run = shared.runs[of_warp][0], *next_run = shared.runs[of_warp][1];
    typename FirWarp<kConfig>::Fetched fetched = warp.fetch(first, run);
    warp.load_filter();
#pragma unroll 1
    for (i64 sequence = first; sequence < end; ++sequence) {
        typename FirWarp<kConfig>::Fetched next;
        if (sequence + 1 < end) {
            next = warp.fetch(sequence + 1, next_run);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncwarp();  // every lane's units have arrived
        if (fetched.place == Place::run)
            warp.walk_tokens(sequence, fetched, run);
        else
            warp.fill(sequence, fetched.place);
        __syncwarp();  // the buffer is free
        HyenaStateUnit* const free_run = run;
        run = next_run, next_run = free_run, fetched = next;
    }
}

}  // namespace gdn_cuda::conv
