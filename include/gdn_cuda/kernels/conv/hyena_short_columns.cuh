// conv/hyena_short_columns: what conv/hyena_short computes, where channels are neighbours in memory.
//
// A warp walks over its tokens of 128 neighbouring channels (64 from 9 taps on), four tokens a step. A lane has two or four
// neighbouring channels, with u of the tokens that its taps meet in registers; all loads of a step are in flight
// at once.
//
// Shared memory: the taps of the warp's channels, newest first.
//
// Bound: memory, as hyena_short. The tokens before a warp's share are read twice, six of some hundred for 7 taps.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short_plan.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kChannels = kConfig.lane_channels(), kStep = kConfig.step(), kBefore = kConfig.taps - 1;
    using Some = Vector<T, kChannels, true>;
    using Taps = float[kConfig.taps][32][kChannels];

    const HyenaArgs& args;
    const Taps& taps;
    int batch, channel;                        // the lane's first channel
    float window[kBefore + kStep][kChannels];  // u; the step's tokens come last

    __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ __forceinline__ bool exists(int c) const { return channel + c < args.channels; }

    // `whole`: the token and all channels exist, and there are vectors.
    __device__ __forceinline__ void load(Some& to, const HyenaTensor& x, int token, int end, bool whole) const {
        const T* from = static_cast<const T*>(x.data) + batch * x.batch + channel * x.channel + token * x.token;
        if (whole) {
            to.load(from);
        } else {
#pragma unroll
            for (int c = 0; c < kChannels; ++c, from += x.channel)
                to.items[c] = token < end && exists(c) ? *from : from_float<T>(0.f);
        }
    }
    __device__ __forceinline__ void store(const Some& y, int token) const {
        T* to = static_cast<T*>(args.y.data) + batch * args.y.batch + channel * args.y.channel + token * args.y.token;
        if (args.vectors && exists(kChannels - 1)) {
            y.store(to);
        } else {
#pragma unroll
            for (int c = 0; c < kChannels; ++c, to += args.y.channel)
                if (exists(c)) *to = y.items[c];
        }
    }
    __device__ __forceinline__ void load_before(int first) {
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            const bool is_met = kBefore - i < args.filter.taps;
#pragma unroll
            for (int c = 0; c < kChannels; ++c)
                window[i][c] = is_met && exists(c) ? u_at<T>(args, batch, channel + c, first - kBefore + i) : 0.f;
        }
    }
    __device__ __forceinline__ void step(int first, int end, const float (&bias)[kChannels]) {
        Some x1[kStep], x2[kStep], v[kStep];
        const bool whole = args.vectors && first + kStep <= end && exists(kChannels - 1);
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
            load(x1[i], args.x1, first + i, end, whole);
            load(v[i], args.v, first + i, end, whole);
            load(x2[i], args.x2, first + i, end, whole);
        }
        float z[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float u = x1[i][c] * v[i][c];
                window[kBefore + i][c] = u;
                z[i][c] = args.filter.gated_bias ? bias[c] * u : bias[c];
            }
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (lag >= args.filter.taps) break;  // a tap of zero would not do: zero times infinity is NaN
            Vector<float, kChannels, true> tap;
            tap.load(taps[lag][lane()]);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) z[i][c] = fmaf(tap[c], window[kBefore + i - lag][c], z[i][c]);
        }
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
            if (first + i >= end) break;
            const float mask = args.mask.numbers.data == nullptr ? 1.f : mask_at(args.mask, batch, first + i);
            Some y;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y.set(c, x2[i][c] * (z[i][c] * mask));
            store(y, first + i);
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) window[i][c] = window[i + kStep][c];
    }
    __device__ __forceinline__ void run(int begin, int end) {
        float bias[kChannels];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) bias[c] = exists(c) ? bias_of(args.filter, channel + c) : 0.f;
        load_before(begin);
#pragma unroll 1
        for (int first = begin; first < end; first += kStep) step(first, end, bias);
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads, 3) hyena_short_columns(const __grid_constant__ HyenaArgs args) {
    using Columns = HyenaShortColumns<kConfig>;
    __shared__ __align__(16) typename Columns::Taps taps[kHyenaShortWarps];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int columns = static_cast<int>(ceil_div(args.channels, kConfig.warp_channels()));
    const HyenaShare share = HyenaShare::of(args, static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp, columns);
    if (!share.exists(args)) return;
    const int channel = share.column * kConfig.warp_channels() + lane * Columns::kChannels;
    for (int lag = 0; lag < args.filter.taps; ++lag)
        for (int c = 0; c < Columns::kChannels; ++c)
            if (channel + c < args.channels) taps[warp][lag][lane][c] = correlation_tap(args.filter, channel + c, lag);
    Columns walk{args, taps[warp], share.batch, channel};
    walk.run(share.first, share.end);
    if (!share.is_last(args)) return;
    for (int c = 0; c < Columns::kChannels; ++c)
        if (channel + c < args.channels) write_last_inputs<Storage<kConfig.io>>(args, share.batch, channel + c, 0, 1);
}

}  // namespace gdn_cuda::conv
