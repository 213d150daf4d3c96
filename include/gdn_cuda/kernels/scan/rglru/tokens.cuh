// scan/rglru and scan/rglru_backward: a thread's place, and loads and stores of its segment of a tile.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/rglru/plan.cuh>

namespace gdn_cuda::scan {

template <RglruConfig kConfig>
struct RglruPlace {
    int batch, channel, segment;
    bool exists;  // whether the channel exists; the last block has fewer

    __device__ __forceinline__ explicit RglruPlace(const RglruArgs& args) {
        if constexpr (kConfig.channels_last) {
            const int groups = (args.channels + 31) / 32;
            batch = static_cast<int>(blockIdx.x) / groups;
            channel = (static_cast<int>(blockIdx.x) - batch * groups) * 32 + lane();
            segment = warp();
        } else {
            batch = static_cast<int>(blockIdx.x) / args.channels;
            channel = static_cast<int>(blockIdx.x) - batch * args.channels;
            segment = static_cast<int>(threadIdx.x);
        }
        exists = channel < args.channels;
    }
    __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
    __device__ __forceinline__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
    __device__ __forceinline__ static int column() { return kConfig.channels_last ? lane() : 0; }  // column in shared memory
    // First token of the thread's segment of a tile.
    __device__ __forceinline__ int first(int tile) const { return tile * kConfig.tile() + segment * kConfig.tokens; }
    // Whether this thread writes what the block writes once per channel.
    __device__ __forceinline__ bool writes() const { return exists && segment == 0; }
    __device__ __forceinline__ i64 in(const RglruTensor& x) const { return batch * x.batch + channel * x.channel; }
    __device__ __forceinline__ i64 in(const RglruStates& x, int sequence, int state) const {
        return sequence * x.sequence + channel * x.channel + state * x.state;
    }
    __device__ __forceinline__ i64 checkpoint(const RglruArgs& args, int tile, int state) const {
        return ((static_cast<i64>(batch) * args.tiles + tile) * args.states + state) * args.channels + channel;
    }
};

// A thread's segment of a tensor.
template <RglruConfig kConfig>
struct RglruTokens {
    using T = Storage<kConfig.io>;
    static constexpr int kTokens = kConfig.tokens;
    static_assert(kTokens * sizeof(T) % 16 == 0);

    Vector<T, kTokens, true> tokens;

    // Tokens from `length` on are 0, as are those of channels that do not exist.
    __device__ __forceinline__ void load(const RglruTensor& from, const RglruPlace<kConfig>& place, int first, int length) {
        const T* at = static_cast<const T*>(from.data) + place.in(from) + first * from.token;
        const int left = place.exists ? length - first : 0;
        if (!kConfig.channels_last && from.vectors && left >= kTokens) {
            tokens.load(at);
        } else if (kConfig.channels_last && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += from.token) tokens.items[i] = *at;
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += from.token) tokens.items[i] = i < left ? *at : from_float<T>(0.f);
        }
    }
    __device__ __forceinline__ void store(const RglruTensor& to, const RglruPlace<kConfig>& place, int first,
                                          int length) const {
        T* at = static_cast<T*>(to.data) + place.in(to) + first * to.token;
        const int left = place.exists ? length - first : 0;
        if (!kConfig.channels_last && to.vectors && left >= kTokens) {
            tokens.store(at);
        } else if (kConfig.channels_last && left >= kTokens) {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += to.token) *at = tokens.items[i];
        } else {
#pragma unroll
            for (int i = 0; i < kTokens; ++i, at += to.token)
                if (i < left) *at = tokens.items[i];
        }
    }
    __device__ __forceinline__ void get(float (&to)[kTokens]) const {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) to[i] = tokens[i];
    }
    __device__ __forceinline__ void set(const float (&from)[kTokens]) {
#pragma unroll
        for (int i = 0; i < kTokens; ++i) tokens.set(i, from[i]);
    }
};

}  // namespace gdn_cuda::scan
