// The part of a selective scan that a block works on, and the places of its elements in a tile.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

// The number of the first chunk of a sequence.
__device__ __forceinline__ int first_chunk(const SelectiveInputs& in, int sequence) {
    if (in.cu_seqlens.data == nullptr) return sequence * static_cast<int>(ceil_div(in.length, kStateChunk));
    int chunk = 0;
    for (int i = 0; i < sequence; ++i)
        chunk += static_cast<int>(ceil_div(span_of(in.cu_seqlens, i, in.length).length, kStateChunk));
    return chunk;
}

// Eight neighbours in a tile of channels × tokens, along tokens or along channels.
template <int kChannels, int kTokens>
struct Neighbours {
    int channel, token;  // of the first

    __device__ __forceinline__ static Neighbours of_thread(unsigned thread, bool along_tokens) {
        constexpr unsigned kRow = kTokens / 8, kColumn = kChannels / 8;
        const unsigned channel = along_tokens ? thread / kRow : thread % kColumn * 8;
        const unsigned token = along_tokens ? thread % kRow * 8 : thread / kColumn;
        return {static_cast<int>(channel), static_cast<int>(token)};
    }
};

// What is known of a tile when it is compiled. All elements of a plain one exist, in aligned vectors along tokens or along
// channels; so do its B and C, along tokens beside such elements, else in either layout; and there is no δ_A. Most tiles are
// plain, and with code of their own take a quarter fewer instructions around the walk. Where a configuration is narrow, they
// are bf16 as well.
enum class Plain { none, tokens, channels };
template <Plain kPlain, bool kNarrow>
struct TileKind {
    static constexpr bool is_plain = kPlain != Plain::none, is_plain_along_tokens = kPlain == Plain::tokens;

    __device__ __forceinline__ static bool along_tokens(bool of_call) { return is_plain ? is_plain_along_tokens : of_call; }
    __device__ __forceinline__ static DType type(DType of_call) { return is_plain && kNarrow ? DType::bf16 : of_call; }
};

// Calls with the kind of a tile. Those along channels are plain where the configuration is narrow, as models have them.
template <bool kNarrow, class F>
__device__ __forceinline__ void of_kind(bool is_plain, bool along_tokens, const F& call) {
    if (!is_plain) return call(TileKind<Plain::none, kNarrow>{});
    if constexpr (kNarrow)
        if (!along_tokens) return call(TileKind<Plain::channels, kNarrow>{});
    call(TileKind<Plain::tokens, kNarrow>{});
}

// A channel has every second one of 2 · kLanes neighbouring lanes. So two neighbours have the same states of two channels, and
// read the same B and C: a warp's loads of 16 bytes a lane then take two wavefronts of shared memory, not four.
template <int kLanes>
struct ChannelLanes {
    static constexpr int kApart = 2;

    template <class Int>
    __device__ __forceinline__ static Int lane(Int thread) {
        return thread / kApart % kLanes;
    }
    template <class Int>
    __device__ __forceinline__ static Int channel(Int thread) {
        return thread / (kApart * kLanes) * kApart + thread % kApart;
    }
    // Calls with the distance of each exchange that a sum over the lanes takes.
    template <class F>
    __device__ __forceinline__ static void each_distance(const F& call) {
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) call(distance * kApart);
    }
    // Every lane gets the sum, in the same order.
    __device__ __forceinline__ static float sum(float x) {
        each_distance([&](int distance) { x += __shfl_xor_sync(0xffffffffu, x, distance); });
        return x;
    }
};

// Hides from the compiler how a thread's address was computed: it would compute it again for every tile, in ten instructions.
__device__ __forceinline__ char* opaque(char* address) {
    asm volatile("" : "+l"(address));
    return address;
}
// The same for a number that only rare paths use: what they compute from it would be kept in registers through the loop.
template <class T>
__device__ __forceinline__ T opaque(T x) {
    asm volatile("" : "+r"(x));
    return x;
}

// A number of A, or of B or C where it is constant.
template <class Number>
__device__ __forceinline__ Number constant_number(const Coefficients& from, i64 channel, int n) {
    const float* at = static_cast<const float*>(from.data) + channel * from.group + n * from.n;
    if constexpr (sizeof(Number) == sizeof(float))
        return *at;
    else
        return {at[0], at[from.pair]};
}

// Neighbouring numbers in shared memory, aligned for vectors of four, or of two.
template <int kCount>
__device__ __forceinline__ void load_shared(float (&to)[kCount], const float* from) {
    if constexpr (kCount % 4 == 0) {
#pragma unroll
        for (int i = 0; i < kCount; i += 4) {
            const float4 x = *reinterpret_cast<const float4*>(from + i);
            to[i] = x.x, to[i + 1] = x.y, to[i + 2] = x.z, to[i + 3] = x.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
            const float2 x = *reinterpret_cast<const float2*>(from + i);
            to[i] = x.x, to[i + 1] = x.y;
        }
    }
}

// The place of a token in a row of a tile. Rows eight channels apart begin in the same bank, so their tokens are swizzled.
template <int kChannels>
__device__ __forceinline__ int swizzled(int channel, int token) {
    return token ^ (channel / 8 * (256 / kChannels));
}

}  // namespace gdn_cuda::scan
