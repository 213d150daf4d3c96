// conv/hyena_fir_step_staged: the step of conv/hyena_fir_step where the states of adjacent channels, K − 1 fp32 values each,
// are contiguous in a slot.
//
// A warp has 4 to 64 channels, so their states are one run of 16-byte units, which is copied to shared memory by cp.async
// and back from there: every access to the pool covers whole lines, although a row's K − 1 values are not aligned. A token
// moves no values: the run has a free place after its end, so each row's token replaces the oldest value of the next row,
// and from then on every row starts one place later. After the last token the run is read from that place on. While a
// sequence is computed, the next one's run is copied to the other of two buffers. Warps share nothing.
//
// If rows are short, a lane has two. Longer rows are multiplied by the whole warp one after the other, and their sums
// reduced together.
//
// Bound: memory, 2 (K − 1) state values a row.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/shared.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step/block.cuh>

namespace gdn_cuda::conv {

// Lane l gets the sum over all lanes of sums[l % kCount].
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
    static constexpr int kSums = kConfig.sums(), kElements = kConfig.elements, kUnitValues = HyenaStateUnit::kValues;
    static constexpr int kUnitBytes = sizeof(HyenaStateUnit), kValueBytes = sizeof(float);
    static constexpr int kOwn = kConfig.lanes == 1 ? kSums : 1;  // rows whose tokens and outputs a lane has

    const HyenaFirStepArgs& args;
    int lane, first_channel;
    int first_sequence;
    int channels = min(kConfig.rows, args.channels - first_channel);  // the warp's
    int units = channels * args.width / kUnitValues;
    float* states = static_cast<float*>(args.states) + first_channel * i64{args.width} + lane * kUnitValues;  // in slot 0
    const Io* u = token(args.u, first_sequence);  // the sequence that is fetched next
    Io* out = token(args.out, first_sequence);    // the sequence that is computed
    float taps[kSums][kElements], current_tap[kOwn], bias[kOwn];

    __device__ __forceinline__ int own_row(int i) const { return kConfig.lanes == 1 ? i * 32 + lane : lane; }
    __device__ __forceinline__ bool has_row(int i) const { return own_row(i) < channels; }
    // The rows, and the values in them, that this lane multiplies.
    __device__ __forceinline__ int row_of_sum(int i) const { return kConfig.lanes == 1 ? i * 32 + lane : i; }
    __device__ __forceinline__ int position(int e) const { return kConfig.lanes == 1 ? e : e * 32 + lane; }
    // The lane's first row at a sequence's first token.
    __device__ __forceinline__ Io* token(const HyenaTokens& x, i64 sequence) const {
        return static_cast<Io*>(const_cast<void*>(x.values.data)) + sequence * x.sequence +
               (first_channel + own_row(0)) * x.channel;
    }

    // All loads are issued before the first value is used.
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
            for (int e = 0; e < kElements; ++e) taps[i][e] = to_float(raw_taps[i][e], args.weight.type);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            current_tap[i] = to_float(raw_current[i], args.weight.type);
            bias[i] = to_float(raw_bias[i], args.bias.type);
        }
    }

    // Calls `each` with the units that this lane copies, relative to its first.
    template <class Each>
    __device__ __forceinline__ void each_unit(const Each& each) const {
#pragma unroll
        for (int i = 0; i < static_cast<int>(ceil_div(kConfig.units(), 32)); ++i)
            if (i * 32 + lane < units) each(i * 32);
    }

    // A sequence in flight: its run in a buffer, and its first token.
    struct Fetched {
        float* states = nullptr;  // the lane's first unit in the pool; null: the sequence does not run
        Io u[kOwn];
    };
    __device__ __forceinline__ Fetched fetch(int sequence, unsigned run) {
        Fetched fetched;
        i64 slot;
        if (slot_of(args, sequence, slot) == Place::run) {
            fetched.states = states + slot * args.state_slot;
            asm volatile("" : "+l"(fetched.states));  // computed once, not for every unit
            each_unit([&](int unit) { cp_async_16(run + (lane + unit) * kUnitBytes, fetched.states + unit * kUnitValues); });
            load_tokens(fetched.u, u);
        }
        cp_async_fence();
        u += args.u.sequence;
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

    // Computes the outputs of the rows; the first row's window starts at `first_window` in shared memory.
    __device__ __forceinline__ void multiply(float (&y)[kOwn], unsigned first_window, const Io (&tokens)[kOwn]) const {
        float sums[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const unsigned window = first_window + (row_of_sum(i) * args.width + position(0)) * kValueBytes;
            sums[i] = 0.f;
#pragma unroll
            for (int e = 0; e < kElements; ++e)
                if (e < kConfig.certain || position(e) < args.width)
                    sums[i] =
                        fmaf(taps[i][e], __uint_as_float(load_shared_word(window + e * kConfig.lanes * kValueBytes)), sums[i]);
        }
        if constexpr (kConfig.lanes > 1) sums[0] = sum_over_lanes(sums, lane);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const float u = to_float(tokens[i]), sum = fmaf(current_tap[i], u, sums[i]);
            y[i] = args.gated_bias ? fmaf(bias[i], u, sum) : sum + bias[i];
        }
    }
    __device__ __forceinline__ void process_tokens(int sequence, Fetched& fetched, unsigned run) const {
        Io* to = out;
        int start = 0;  // where the first row's window starts
#pragma unroll 1
        for (int t = 0;; to += args.out.token) {
            float y[kOwn];
            multiply(y, run + start * kValueBytes, fetched.u);
            store_tokens(to, y);
            __syncwarp();  // every row's oldest value has been read
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                if (has_row(i))
                    store_shared(run + ((own_row(i) + 1) * args.width + start) * kValueBytes,
                                 __float_as_uint(to_float(fetched.u[i])));
            ++start;
            __syncwarp();
            if (++t == args.tokens) break;
            load_tokens(fetched.u, token(args.u, sequence) + t * args.u.token);
            if (start == kUnitValues) {
                move_down(run);
                start = 0;
            }
        }
        store(fetched.states, run, start);
    }
    // Moves the run one unit down.
    __device__ __forceinline__ void move_down(unsigned run) const {
#pragma unroll 1
        for (int first = 0; first < units; first += 32) {
            const int unit = min(first + lane, units - 1);
            const uint4 moved = load_shared(run + (unit + 1) * kUnitBytes);
            __syncwarp();
            store_shared(run + unit * kUnitBytes, moved);
            __syncwarp();
        }
    }
    // Writes the run that starts at value `start`, 1 to 4, back to the pool.
    __device__ __forceinline__ void store(float* to, unsigned run, int start) const {
        switch (start) {
            case 1:
                return store_from<1>(to, run);
            case 2:
                return store_from<2>(to, run);
            case 3:
                return store_from<3>(to, run);
            default:
                return store_from<kUnitValues>(to, run);
        }
    }
    template <int kStart>
    __device__ __forceinline__ void store_from(float* to, unsigned run) const {
        each_unit([&](int unit) {
            const unsigned from = run + (lane + unit) * kUnitBytes;
            uint4 both[2]{};
            if constexpr (kStart < kUnitValues) both[0] = load_shared(from);
            both[1] = load_shared(from + kUnitBytes);
            const unsigned words[] = {both[0].x, both[0].y, both[0].z, both[0].w, both[1].x, both[1].y, both[1].z, both[1].w};
            const Raw<16> stored{{words[kStart], words[kStart + 1], words[kStart + 2], words[kStart + 3]}};
            stored.store_global(to + unit * kUnitValues);
        });
    }
    // Fills the output of a sequence that does not run.
    __device__ __forceinline__ void fill(int sequence) const {
        i64 slot;
        const Place place = slot_of(args, sequence, slot);
        float y[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) y[i] = place == Place::skip ? 0.f : quiet_nan();
#pragma unroll 1
        for (int t = 0; t < args.tokens; ++t) store_tokens(out + t * args.out.token, y);
    }
};

template <HyenaFirStagedConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads, kConfig.blocks())
    hyena_fir_step_staged(const __grid_constant__ HyenaFirStepArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaFirStagedSharedPlan<kConfig>*>(memory);
    const int warp_index = static_cast<int>(threadIdx.x) / 32;
    const HyenaStepBlock block(args, kConfig.block_rows());
    const i64 first_channel = block.first_channel + warp_index * kConfig.rows;
    if (first_channel >= args.channels) return;

    FirWarp<kConfig> warp{args, static_cast<int>(threadIdx.x) % 32, static_cast<int>(first_channel), block.first};
    unsigned runs = shared_address(shared.runs[warp_index]);
    asm volatile("" : "+r"(runs));  // opaque: the compiler would recompute it for every access
    const auto run_of = [&](int i) { return runs + i % 2 * static_cast<unsigned>(sizeof(shared.runs[warp_index][0])); };
    typename FirWarp<kConfig>::Fetched fetched = warp.fetch(block.first, run_of(block.first));
    warp.load_filter();
#pragma unroll 1
    for (int sequence = block.first; sequence < block.end; ++sequence) {
        typename FirWarp<kConfig>::Fetched next;
        if (sequence + 1 < block.end) {
            next = warp.fetch(sequence + 1, run_of(sequence + 1));
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncwarp();  // every lane's units have arrived
        if (fetched.states != nullptr)
            warp.process_tokens(sequence, fetched, run_of(sequence));
        else
            warp.fill(sequence);
        __syncwarp();  // the buffer is free
        warp.out += args.out.sequence;
        fetched = next;
    }
}

}  // namespace gdn_cuda::conv
