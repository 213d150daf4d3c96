// Shared by conv/hyena_short_columns and conv/hyena_short_columns_backward, whose lanes have contiguous channels and iterate
// over tokens.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>

namespace gdn_cuda::conv {

// A lane's channels of a tensor, from a token on. The pointer advances token by token, because multiples of the stride would
// take registers.
template <class T, int kChannels>
struct HyenaColumn {
    using Values = Vector<T, kChannels, (kChannels > 1)>;

    T* next = nullptr;
    i64 token = 0, channel_stride = 0;  // strides
    int channels = 0;                   // channels from the lane's first to the tensor's last

    HyenaColumn() = default;
    __device__ __forceinline__ HyenaColumn(const HyenaTensor& x, int tensor_channels, int batch, int channel, int first)
        : next(static_cast<T*>(x.data) + batch * x.batch + channel * x.channel + first * x.token),
          token(x.token),
          channel_stride(x.channel),
          channels(tensor_channels - channel) {}
    __device__ __forceinline__ bool exists(int c) const { return c < channels; }

    // The next kCount tokens, as vectors.
    template <int kCount, int kMost>
    __device__ __forceinline__ void load(Values (&to)[kMost]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i, next += token) to[i].load(next);
    }
    template <int kCount>
    __device__ __forceinline__ void store(const Values (&y)[kCount]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i, next += token) y[i].store(next);
    }
    // The next token, element by element.
    __device__ __forceinline__ void load_one(Values& to) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) to.items[c] = exists(c) ? next[c * channel_stride] : from_float<T>(0.f);
        next += token;
    }
    __device__ __forceinline__ void store_one(const Values& y) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            if (exists(c)) next[c * channel_stride] = y.items[c];
        next += token;
    }
};

// Loads a lane's bias and its taps, newest first, to `tap(lag)`. Channels that do not exist get the last channel's taps.
template <int kTaps, int kChannels>
__device__ __forceinline__ void load_lane_filter(float (&bias)[kChannels], const HyenaArgs& args, int channel, auto&& tap) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) bias[c] = channel + c < args.channels ? bias_of(args.filter, channel + c) : 0.f;
#pragma unroll 8
    for (int lag = 0; lag < kTaps; ++lag) {
        if (lag >= args.filter.taps) break;
        Vector<float, kChannels, true> taps;
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            taps.items[c] = correlation_tap(args.filter, min(channel + c, args.channels - 1), lag);
        tap(lag) = taps;
    }
}
// u of kCount tokens, as vectors.
template <int kCount, class T, int kChannels, int kMost>
__device__ __forceinline__ void load_u(float (&u)[kMost][kChannels], HyenaColumn<T, kChannels> x1,
                                       HyenaColumn<T, kChannels> v) {
    typename HyenaColumn<T, kChannels>::Values x1_values[kCount + 1], v_values[kCount + 1];  // kCount may be 0
    x1.template load<kCount>(x1_values);
    v.template load<kCount>(v_values);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int c = 0; c < kChannels; ++c) u[i][c] = x1_values[i][c] * v_values[i][c];
}

}  // namespace gdn_cuda::conv
