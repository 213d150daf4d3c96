// conv/hyena_short_columns_backward: what conv/hyena_short_backward computes, where channels are neighbours in memory.
//
// A warp walks over its tokens of 64 neighbouring channels (32 from 9 taps on), four tokens a step (eight).
// A lane has two channels or one, with u and dz of the last tokens in two windows in registers, and a sum for each tap.
// A step computes the gradient of x2 at its own tokens, and those of x1 and v as many tokens earlier as a filter is long,
// because they need dz behind theirs: x1 and v come again from the L1 cache. So the walk ends so many tokens behind the
// share, and those in front of the first token of a sequence are the gradient of the initial state.
//
// Shared memory: the taps of the warp's channels, newest first.
//
// Bound: as hyena_short_backward. The tokens next to a warp's share, at both ends, are read twice.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short_backward_common.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortColumnsBackward {
    using T = Storage<kConfig.io>;
    static constexpr HyenaShortBackwardColumns kColumns{kConfig};
    static constexpr int kChannels = kColumns.lane_channels(), kStep = kColumns.step(), kBefore = kConfig.taps - 1;
    using Some = Vector<T, kChannels, (kChannels > 1)>;
    using Taps = float[kConfig.taps][32][kChannels];
    using Window = float[kBefore + kStep][kChannels];  // the step's tokens come last

    const HyenaShortBackwardArgs& args;
    const Taps& taps;
    const HyenaShare& share;
    const int channel;  // the lane's first
    Window u, dz = {};
    float of_taps[kConfig.taps][kChannels] = {}, of_bias[kChannels] = {}, bias[kChannels];

    const HyenaArgs& forward = args.forward;
    const int batch = share.batch;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }
    __device__ __forceinline__ bool exists(int c) const { return channel + c < forward.channels; }

    // Pointers step from token to token, as multiples of every tensor's stride would take all registers.
    __device__ __forceinline__ T* at(const HyenaTensor& x, int token) const {
        return static_cast<T*>(x.data) + batch * x.batch + channel * x.channel + token * x.token;
    }
    // Tokens of a step, 0 outside of [first, end).
    __device__ __forceinline__ void load(Some (&to)[kStep], const HyenaTensor& x, int token, int first, int end) const {
        const T* from = at(x, token);
        if (is_whole(token, first, end)) {
#pragma unroll
            for (int i = 0; i < kStep; ++i, from += x.token) to[i].load(from);
        } else {
#pragma unroll
            for (int i = 0; i < kStep; ++i, from += x.token)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    const bool is_given = token + i >= first && token + i < end && exists(c);
                    to[i].items[c] = is_given ? from[c * x.channel] : from_float<T>(0.f);
                }
        }
    }
    __device__ __forceinline__ bool is_whole(int token, int first, int end) const {
        return forward.vectors && token >= first && token + kStep <= end && exists(kChannels - 1);
    }
    // Those tokens of a step that are the share's.
    __device__ __forceinline__ void store(const HyenaTensor& x, int token, const Some (&y)[kStep]) const {
        T* to = at(x, token);
        if (is_whole(token, share.first, share.end)) {
#pragma unroll
            for (int i = 0; i < kStep; ++i, to += x.token) y[i].store(to);
        } else {
#pragma unroll
            for (int i = 0; i < kStep; ++i, to += x.token)
#pragma unroll
                for (int c = 0; c < kChannels; ++c)
                    if (token + i >= share.first && token + i < share.end && exists(c)) to[c * x.channel] = y[i].items[c];
        }
    }
    __device__ __forceinline__ void load_before() {
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const bool is_met = kBefore - i < forward.filter.taps && exists(c);
                u[i][c] = is_met ? u_at<T>(forward, batch, channel + c, share.first - kBefore + i) : 0.f;
            }
    }
    __device__ __forceinline__ Vector<float, kChannels, true> tap_at(int lag) const {
        Vector<float, kChannels, true> tap;
        tap.load(taps[lag][lane()]);
        return tap;
    }
    // The gradients of x2 and of the taps. grad: times the mask.
    __device__ __forceinline__ void convolve(int token, const float (&grad)[kStep][kChannels]) {
        float z[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                const float factor = forward.filter.gated_bias ? u[kBefore + i][c] : 1.f;
                z[i][c] = bias[c] * factor;
                of_bias[c] = fmaf(dz[kBefore + i][c], factor, of_bias[c]);
            }
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (lag >= forward.filter.taps) break;  // a tap of zero would not do: zero times infinity is NaN
            const auto tap = tap_at(lag);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) {
                    z[i][c] = fmaf(tap[c], u[kBefore + i - lag][c], z[i][c]);
                    of_taps[lag][c] = fmaf(dz[kBefore + i][c], u[kBefore + i - lag][c], of_taps[lag][c]);
                }
        }
        Some y[kStep];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, grad[i][c] * z[i][c]);
        store(args.of_x2, token, y);
    }
    // The gradients of x1 and v from a token on, where dz begins with that token's.
    __device__ __forceinline__ void correlate(int token) const {
        if (token + kStep <= share.first && share.first > 0) return;
        float du[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) du[i][c] = forward.filter.gated_bias ? bias[c] * dz[i][c] : 0.f;
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (lag >= forward.filter.taps) break;
            const auto tap = tap_at(lag);
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c) du[i][c] = fmaf(tap[c], dz[i + lag][c], du[i][c]);
        }
        const int length = forward.filter.taps - 1;
        if (token + kStep > forward.tokens - length)
#pragma unroll
            for (int i = 0; i < kStep; ++i)
#pragma unroll
                for (int c = 0; c < kChannels; ++c)
                    if (exists(c)) du[i][c] += of_last_at(args, batch, channel + c, token + i);
        Some x1[kStep], v[kStep], y[kStep];
        load(x1, forward.x1, token, share.first, share.end);
        load(v, forward.v, token, share.first, share.end);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, du[i][c] * v[i][c]);
        store(args.of_x1, token, y);
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) y[i].set(c, du[i][c] * x1[i][c]);
        store(args.of_v, token, y);
        if (token < 0 && args.of_initial != nullptr) write_initial(token, du);
    }
    __device__ __forceinline__ void write_initial(int token, const float (&du)[kStep][kChannels]) const {
        const int length = forward.filter.taps - 1;
#pragma unroll
        for (int i = 0; i < kStep; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c)
                if (token + i < 0 && token + i >= -length && exists(c)) {
                    const i64 row = static_cast<i64>(batch) * forward.channels + channel + c;
                    args.of_initial[(row + 1) * length + token + i] = du[i][c];
                }
    }
    __device__ __forceinline__ void step(int token) {
        Some x1[kStep], x2[kStep], v[kStep], of_y[kStep];
        load(x1, forward.x1, token, share.first, share.end);
        load(v, forward.v, token, share.first, share.end);
        load(x2, forward.x2, token, share.first, forward.tokens);
        load(of_y, args.of_y, token, share.first, forward.tokens);
        float grad[kStep][kChannels];
#pragma unroll
        for (int i = 0; i < kStep; ++i) {
            const bool is_masked = forward.mask.numbers.data != nullptr && token + i < forward.tokens;
            const float mask = is_masked ? mask_at(forward.mask, batch, token + i) : 1.f;
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                grad[i][c] = of_y[i][c] * mask;
                dz[kBefore + i][c] = grad[i][c] * x2[i][c];
                u[kBefore + i][c] = x1[i][c] * v[i][c];
            }
        }
        if (token < share.end) convolve(token, grad);
        correlate(token - kBefore);
#pragma unroll
        for (int i = 0; i < kBefore; ++i)
#pragma unroll
            for (int c = 0; c < kChannels; ++c) {
                u[i][c] = u[i + kStep][c];
                dz[i][c] = dz[i + kStep][c];
            }
    }
    __device__ __forceinline__ void run() {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) bias[c] = exists(c) ? bias_of(forward.filter, channel + c) : 0.f;
        load_before();
#pragma unroll 1
        for (int token = share.first; token < share.end + kBefore; token += kStep) step(token);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
            if (!exists(c)) break;
            const i64 at = sums_of(forward, share, channel + c);
            args.of_bias[at] = of_bias[c];
#pragma unroll
            for (int lag = 0; lag < kConfig.taps; ++lag) {
                if (lag >= forward.filter.taps) break;
                args.of_weight[at * forward.filter.taps + forward.filter.taps - 1 - lag] = of_taps[lag][c];
            }
        }
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads, blocks_without_spills(HyenaShortBackwardColumns{kConfig}.blocks()))
    hyena_short_columns_backward(const __grid_constant__ HyenaShortBackwardArgs args) {
    using Columns = HyenaShortColumnsBackward<kConfig>;
    constexpr int kChannels = Columns::kColumns.warp_channels();
    __shared__ __align__(16) typename Columns::Taps taps[kHyenaShortWarps];
    const HyenaArgs& forward = args.forward;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of_warp();
    const int columns = static_cast<int>(ceil_div(forward.channels, kChannels));
    const HyenaShare share = HyenaShare::of(forward, static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp, columns);
    if (!share.exists(forward)) return;
    const int channel = share.column * kChannels + lane * Columns::kChannels;
    for (int lag = 0; lag < forward.filter.taps; ++lag)
        for (int c = 0; c < Columns::kChannels; ++c)
            if (channel + c < forward.channels) taps[warp][lag][lane][c] = correlation_tap(forward.filter, channel + c, lag);
    Columns{args, taps[warp], share, channel}.run();
}

}  // namespace gdn_cuda::conv
