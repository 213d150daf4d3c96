// Indices of chunks, and which elements of a tile the threads and lanes of a block take.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

// Index of the sequence's first chunk among those of all sequences.
__device__ __forceinline__ int first_chunk(const SelectiveInputs& in, int sequence) {
    if (in.cu_seqlens.data == nullptr) return sequence * static_cast<int>(ceil_div(in.length, kStateChunk));
    int chunk = 0;
    for (int i = 0; i < sequence; ++i)
        chunk += static_cast<int>(ceil_div(span_of(in.cu_seqlens, i, in.length).length, kStateChunk));
    return chunk;
}

// A thread's eight contiguous elements of a tile of channels × tokens: along tokens, or along channels.
template <int kChannels, int kTokens>
struct TileVector {
    int channel, token;  // the first element's

    __device__ __forceinline__ static TileVector for_thread(unsigned thread, bool along_tokens) {
        constexpr unsigned kRow = kTokens / 8, kColumn = kChannels / 8;
        const unsigned channel = along_tokens ? thread / kRow : thread % kColumn * 8;
        const unsigned token = along_tokens ? thread % kRow * 8 : thread / kColumn;
        return {static_cast<int>(channel), static_cast<int>(token)};
    }
};

// What is known of a tile at compile time. In a plain tile every element exists and is in an aligned vector, along tokens or
// along channels; so are B and C (along tokens in a tile along tokens, otherwise in either layout); and there is no δ_A. In
// narrow configurations a plain tile is also bf16. Most tiles are plain; specialised, they take a quarter fewer instructions
// outside the recurrence.
enum class Plain { none, tokens, channels };
template <Plain kPlain, bool kNarrow>
struct TileKind {
    static constexpr bool is_plain = kPlain != Plain::none, is_plain_along_tokens = kPlain == Plain::tokens;

    __device__ __forceinline__ static bool along_tokens(bool runtime) { return is_plain ? is_plain_along_tokens : runtime; }
    __device__ __forceinline__ static DType type(DType runtime) { return is_plain && kNarrow ? DType::bf16 : runtime; }
};

// Calls `call` with the TileKind. Tiles along channels are plain in narrow configurations alone, which is what models use.
template <bool kNarrow, class F>
__device__ __forceinline__ void with_tile_kind(bool is_plain, bool along_tokens, const F& call) {
    if (!is_plain) return call(TileKind<Plain::none, kNarrow>{});
    if constexpr (kNarrow)
        if (!along_tokens) return call(TileKind<Plain::channels, kNarrow>{});
    call(TileKind<Plain::tokens, kNarrow>{});
}

// A channel's lanes are every second one of 2 · kLanes consecutive lanes. So two adjacent lanes have the same states of two
// channels and read the same B and C: a warp's 16-byte shared loads take two wavefronts instead of four.
template <int kLanes>
struct ChannelLanes {
    static constexpr int kLaneStride = 2;

    template <class Int>
    __device__ __forceinline__ static Int lane(Int thread) {
        return thread / kLaneStride % kLanes;
    }
    template <class Int>
    __device__ __forceinline__ static Int channel(Int thread) {
        return thread / (kLaneStride * kLanes) * kLaneStride + thread % kLaneStride;
    }
    // Calls `call` with the lane distance of each shuffle of a butterfly reduction over a channel's lanes.
    template <class F>
    __device__ __forceinline__ static void each_distance(const F& call) {
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) call(distance * kLaneStride);
    }
    // Every lane gets the sum, added in the same order.
    __device__ __forceinline__ static float sum(float x) {
        each_distance([&](int distance) { x += __shfl_xor_sync(0xffffffffu, x, distance); });
        return x;
    }
};

// An element of A, or of a constant B or C.
template <class Number>
__device__ __forceinline__ Number constant_number(const Coefficients& from, i64 channel, int n) {
    const float* at = static_cast<const float*>(from.data) + channel * from.group + n * from.n;
    if constexpr (sizeof(Number) == sizeof(float))
        return *at;
    else
        return {at[0], at[from.pair]};
}

// Loads contiguous floats from shared memory, by vectors of four or two, to which `from` is aligned.
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

// Column of a token in its row of a tile. Rows eight channels apart begin in the same bank, so tokens are swizzled by channel.
template <int kChannels>
__device__ __forceinline__ int swizzled(int channel, int token) {
    return token ^ (channel / 8 * (256 / kChannels));
}

}  // namespace gdn_cuda::scan
