// What conv/hyena_short_columns and conv/hyena_short_columns_backward share: lanes that walk over tokens of neighbouring
// channels.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>

namespace gdn_cuda::conv {

// Shares of neighbouring numbers are of neighbouring columns of the same tokens.
__device__ __forceinline__ HyenaShare share_of_columns(const HyenaArgs& args, i64 number, int columns) {
    const i64 row = number / columns;  // sequences, and segments within
    const int column = static_cast<int>(number - row * columns);
    const i64 batch = row / args.segments, segment = row - batch * args.segments;
    return HyenaShare::of(args, (batch * columns + column) * args.segments + segment, columns);
}

// A lane's channels of a tensor, from a token on. The pointer goes from token to token, as multiples of the stride would take
// registers.
template <class T, int kChannels>
struct HyenaColumn {
    using Some = Vector<T, kChannels, (kChannels > 1)>;

    T* next = nullptr;
    i64 token = 0, neighbour = 0;  // strides
    int channels = 0;              // of the lane

    HyenaColumn() = default;
    __device__ __forceinline__ HyenaColumn(const HyenaTensor& x, int of_tensor, int batch, int channel, int first)
        : next(static_cast<T*>(x.data) + batch * x.batch + channel * x.channel + first * x.token),
          token(x.token),
          neighbour(x.channel),
          channels(of_tensor - channel) {}
    __device__ __forceinline__ bool exists(int c) const { return c < channels; }

    // The next kCount tokens, as vectors.
    template <int kCount, int kMost>
    __device__ __forceinline__ void load(Some (&to)[kMost]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i, next += token) to[i].load(next);
    }
    template <int kCount>
    __device__ __forceinline__ void store(const Some (&y)[kCount]) {
#pragma unroll
        for (int i = 0; i < kCount; ++i, next += token) y[i].store(next);
    }
    // The next token, element by element.
    __device__ __forceinline__ void load_one(Some& to) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) to.items[c] = exists(c) ? next[c * neighbour] : from_float<T>(0.f);
        next += token;
    }
    __device__ __forceinline__ void store_one(const Some& y) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c)
            if (exists(c)) next[c * neighbour] = y.items[c];
        next += token;
    }
};

// A lane's bias, and its taps, newest first, to where `tap(lag)` says. Channels that do not exist have the last one's taps.
template <int kTaps, int kChannels>
__device__ __forceinline__ void load_filter_of_lane(float (&bias)[kChannels], const HyenaArgs& args, int channel, auto&& tap) {
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
    typename HyenaColumn<T, kChannels>::Some of_x1[kCount + 1], of_v[kCount + 1];  // kCount may be 0
    x1.template load<kCount>(of_x1);
    v.template load<kCount>(of_v);
#pragma unroll
    for (int i = 0; i < kCount; ++i)
#pragma unroll
        for (int c = 0; c < kChannels; ++c) u[i][c] = of_x1[i][c] * of_v[i][c];
}

}  // namespace gdn_cuda::conv
