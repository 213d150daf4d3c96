// conv/hyena_short_columns: the same as conv/hyena_short, channels contiguous in memory.
//
// A warp iterates over its tokens of 128 contiguous channels (64 from 9 taps on), four tokens a step (or eight). A lane has
// four or two of the channels, with u of the tokens that its taps reach in registers. The next step's loads are issued while
// a step is computed, as soon as their registers have been read. Consecutive warps have adjacent channels of the same
// tokens, so that the GPU reads whole rows at a time.
//
// Shared memory, per warp: the taps of its channels, newest first, and the last values of u, for tokens that are read one by
// one: those after the last whole step, and all tokens of tensors without aligned vectors.
//
// Bound: memory, as conv/hyena_short: 94 % of an H200's memory bandwidth with 7 taps. The tokens before a warp's segment are
// read twice, six of some hundred for 7 taps.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/columns_common.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kChannels = kConfig.lane_channels(), kStep = kConfig.step(), kBefore = kConfig.taps - 1;
    using Values = Vector<T, kChannels, true>;
    using Column = HyenaColumn<T, kChannels>;
    using Floats = Vector<float, kChannels, true>;
    using Shared = HyenaShortColumnsShared<kConfig, Floats>;

    const HyenaArgs& args;
    Shared& shared;                            // the warp's; a lane reads only what it wrote
    int batch, channel;                        // the lane's first channel
    float window[kBefore + kStep][kChannels];  // u; the step's tokens come last
    float bias[kChannels];

    __device__ __forceinline__ Floats& tap(int lag) const { return shared.taps[lag][lane_of_warp()]; }
    __device__ __forceinline__ Floats& recent(int slot) const { return shared.recent[slot][lane_of_warp()]; }
    __device__ __forceinline__ Column column(const HyenaTensor& x, int token) const {
        return {x, args.channels, batch, channel, token};
    }
    __device__ __forceinline__ bool exists(int c) const { return channel + c < args.channels; }

    // Loads u of the tokens before `first` to shared memory.
    __device__ __forceinline__ void load_recent(int first) const {
#pragma unroll 1
        for (int i = 0; i < kBefore; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const bool is_seen = kBefore - i < args.filter.taps && exists(c);
                recent(i).items[c] = is_seen ? u_at<T>(args, batch, channel + c, first - kBefore + i) : 0.f;
            }
    }
    // The same, to the window. Only a sequence's first segment has no tokens before it.
    __device__ __forceinline__ void load_window(int first) {
        if (first == 0) {
            load_recent(first);
#pragma unroll
            for (int i = 0; i < kBefore; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) window[i][c] = recent(i)[c];
        } else {
            load_u<kBefore>(window, column(args.x1, first - kBefore), column(args.v, first - kBefore));
        }
    }
    // Tokens [first, end), whole steps of aligned vectors.
    __device__ __forceinline__ void process_vectors(int first, int end) {
        load_window(first);
        Column x1 = column(args.x1, first), v = column(args.v, first), x2 = column(args.x2, first), y = column(args.y, first);
        Values next_x1[kStep], next_v[kStep], next_x2[kStep];
        if (first < end) {
            x1.template load<kStep>(next_x1);
            v.template load<kStep>(next_v);
            x2.template load<kStep>(next_x2);
        }
#pragma unroll 1
        for (; first < end; first += kStep) {
            const bool has_next = first + kStep < end;
            float z[kStep][kChannels];
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    const float u = next_x1[i][c] * next_v[i][c];
                    window[kBefore + i][c] = u;
                    z[i][c] = args.filter.gated_bias ? bias[c] * u : bias[c];
                }
            if (has_next) {
                x1.template load<kStep>(next_x1);
                v.template load<kStep>(next_v);
            }
#pragma unroll
            for (int lag = 0; lag < kConfig.taps; ++lag) {
                if (kConfig.ends_before(lag, args.filter.taps)) break;
                const Floats now = tap(lag);
#pragma unroll
                for (int i = 0; i < kStep; ++i)
#pragma unroll
                    for (int c = 0; c < kChannels; ++c) z[i][c] = fmaf(now[c], window[kBefore + i - lag][c], z[i][c]);
            }
            if (args.mask.values.data != nullptr) multiply_by_mask(z, first);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) next_x2[i].set(c, next_x2[i][c] * z[i][c]);
            y.template store<kStep>(next_x2);
            if (has_next) x2.template load<kStep>(next_x2);
#pragma unroll
            for (int i = 0; i < kBefore; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) window[i][c] = window[i + kStep][c];
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) recent(i).items[c] = window[i][c];
    }
    // Applies the mask to a step. A loop that is not unrolled saves registers in mask_at; `recent` is unused while there is
    // a window.
    __device__ __forceinline__ void multiply_by_mask(float (&z)[kStep][kChannels], int first) const {
        static_assert(kStep <= kConfig.taps);
#pragma unroll 1
        for (int i = 0; i < kStep; ++i) recent(i).items[0] = mask_at(args.mask, batch, first + i);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) z[i][c] *= recent(i).items[0];
    }
    // Tokens one by one, element by element; `recent` holds those before them.
    __device__ __forceinline__ void process_elements(int first, int end) const {
        if (first >= end) return;
        Column x1 = column(args.x1, first), v = column(args.v, first), x2 = column(args.x2, first), y = column(args.y, first);
        Values now_x1, now_v, now_x2;
        x1.load_one(now_x1), v.load_one(now_v), x2.load_one(now_x2);
        int slot = kBefore;  // the token's slot
#pragma unroll 1
        for (; first < end; ++first) {
            Floats u, z;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                u.items[c] = now_x1[c] * now_v[c];
                z.items[c] = args.filter.gated_bias ? bias[c] * u[c] : bias[c];
            }
            recent(slot) = u;
            Values gate = now_x2;
            if (first + 1 < end) x1.load_one(now_x1), v.load_one(now_v), x2.load_one(now_x2);
            int lag_slot = slot;
#pragma unroll 4
            for (int lag = 0; lag < args.filter.taps; ++lag) {
                const Floats now = tap(lag), before = recent(lag_slot);
#pragma unroll
                for (int c = 0; c < kChannels; ++c) z.items[c] = fmaf(now[c], before[c], z[c]);
                lag_slot = lag_slot == 0 ? kBefore : lag_slot - 1;
            }
            const float mask = args.mask.values.data == nullptr ? 1.f : mask_at(args.mask, batch, first);
#pragma unroll
            for (int c = 0; c < kChannels; ++c) gate.set(c, gate[c] * (z[c] * mask));
            y.store_one(gate);
            slot = slot == kBefore ? 0 : slot + 1;
        }
    }
    __device__ __forceinline__ void run(const HyenaSegment& segment) {
        int first = segment.first;
        load_lane_filter<kConfig.taps>(bias, args, channel, [&](int lag) -> Floats& { return tap(lag); });
        if (args.vectors && args.channels % kChannels == 0) {
            first += (segment.end - segment.first) / kStep * kStep;
            process_vectors(segment.first, first);
        } else {
            load_recent(first);
        }
        process_elements(first, segment.end);
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads, blocks_without_spills(kConfig.columns_blocks_an_sm()))
    hyena_short_columns(const __grid_constant__ HyenaArgs args) {
    using Columns = HyenaShortColumns<kConfig>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = reinterpret_cast<typename Columns::Shared*>(memory)[threadIdx.x / 32];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int columns = static_cast<int>(ceil_div(args.channels, kConfig.warp_channels()));
    const HyenaSegment segment = segment_of_columns(args, static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp, columns);
    const int channel = segment.column * kConfig.warp_channels() + lane_of_warp() * Columns::kChannels;
    if (!segment.exists(args) || channel >= args.channels) return;  // no warp-level sync follows
    Columns{args, shared, segment.batch, channel}.run(segment);
    if (!segment.is_last(args)) return;
    for (int c = 0; c < Columns::kChannels; ++c)
        if (channel + c < args.channels) write_last_inputs<Storage<kConfig.io>>(args, segment.batch, channel + c, 0, 1);
}

}  // namespace gdn_cuda::conv
