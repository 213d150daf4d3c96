// How hyena_medium's kernels reach their tensors, in either layout, with tiles as toeplitz/band.cuh has them.
//
// A thread has 16 elements of a tile of 512 tokens, its own, of every tensor, and multiplies own elements by own elements.
// Products go to shared memory as bf16 parts of pairs of tokens, operands of tensor cores. Sums of the tile come back through
// shared memory. Two types have the same members:
//     MediumRows       tokens are neighbours, or neither are: own elements are eight tokens each of either half of the tile
//     MediumColumns    channels are neighbours: a block takes as many of them as it has warps. Own elements are 16 bytes of
//                      channels each of neighbouring tokens: a thread writes pairs of tokens for other warps, and takes
//                      sums of other warps
//
//     Own x1, v, x2;                           tile.load(x1, args.x1, first_token); …
//     PairParts<3> u = tile.product(x1, v)     tile.keep<&Shared::u>(u, first_token); tile.meet(); now u is in shared memory
//     store_sums(scratch, sums, tile.flip())   tile.meet(); tile.take(x): now x[i] is the sum of the thread's own element i
//
// In MediumColumns `meet` is a __syncthreads. A warp whose channel does not exist takes part with zeros.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile_layouts.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/band.cuh>

namespace gdn_cuda::conv {

template <class T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<__nv_bfloat16> = true;

// The table of a channel's taps, with the bias added to the first. Returns what one bf16 part leaves of that sum.
template <int kTaps, int kParts>
__device__ __forceinline__ float fill_taps(BandTable<kTaps, kParts>& table, const HyenaFilter& filter, int channel, int rows,
                                           bool exists) {
    const i64 group = channel / filter.channels_a_group * filter.group;
    const float first = exists ? load_number(filter.weight, group) + bias_of(filter, channel) : 0.f;
    fill_band(table, lane_of_warp(), rows, [&](int x) {
        if (x == 0) return first;
        return x > 0 && x < filter.taps && exists ? load_number(filter.weight, group + x * filter.tap) : 0.f;
    });
    return first - unpack<DType::bf16>(pack<DType::bf16>(first, 0.f)).x;
}

// A thread's products in bf16 parts: of eight pairs of tokens.
template <int kParts>
struct PairParts {
    static constexpr int kPairsOfThread = kOwn / 2;

    unsigned at[kParts][kPairsOfThread];
};

// Both bf16 parts of two products of bf16 numbers. They are exact: two parts have 16 bits, as many as the product.
__device__ __forceinline__ void multiply_bf16(unsigned& high, unsigned& low, unsigned x, unsigned y) {
    constexpr unsigned kMinus = 0x80008000u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(high) : "r"(x), "r"(y), "r"(kMinus));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(low) : "r"(x), "r"(y), "r"(high ^ kMinus));
}
// Of a thread's neighbouring elements, two by two.
__device__ __forceinline__ PairParts<2> multiply_bf16(const __nv_bfloat16 (&x)[kOwn], const __nv_bfloat16 (&y)[kOwn]) {
    PairParts<2> parts;
#pragma unroll
    for (int i = 0; i < parts.kPairsOfThread; ++i)
        multiply_bf16(parts.at[0][i], parts.at[1][i], reinterpret_cast<const unsigned*>(x)[i],
                      reinterpret_cast<const unsigned*>(y)[i]);
    return parts;
}

template <class T, int kParts, class Shared>
struct MediumRows : HyenaTileRows<T> {
    using Own = typename HyenaTileRows<T>::Own;
    using Parts = PairParts<kParts>;

    Shared& shared;

    __device__ __forceinline__ MediumRows(Shared& shared, const HyenaShare& share, bool vectors)
        : HyenaTileRows<T>{reinterpret_cast<HyenaStage<kTileTokens>&>(shared.scratch), share.batch, share.column, share.end,
                           vectors},
          shared(shared) {}

    __device__ __forceinline__ static int flip() { return 0; }
    __device__ __forceinline__ static void meet() { __syncwarp(); }
    __device__ __forceinline__ static Parts parts_of(const float (&x)[kOwn]) {
        const TileParts<kParts> tile = parts_of_row<kParts>(x);
        Parts parts;
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int i = 0; i < Parts::kPairsOfThread; ++i) parts.at[part][i] = tile.at[part][i / 4][i % 4];
        return parts;
    }
    __device__ __forceinline__ static Parts product(const Own& x, const Own& y) {
        if constexpr (kIsBf16<T>) {
            return multiply_bf16(reinterpret_cast<const T(&)[kOwn]>(x), reinterpret_cast<const T(&)[kOwn]>(y));
        } else {
            float numbers[kOwn];
            multiply(numbers, x, y);
            return parts_of(numbers);
        }
    }
    template <auto kRing>
    __device__ __forceinline__ void keep(const Parts& parts, int tile) const {
        const auto ring = band_ring(shared.*kRing, flip());
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const unsigned* const x = parts.at[part] + 4 * half;
                ring.unit(part, ToeplitzTile<T>::first(tile, half) / kEight) = {x[0], x[1], x[2], x[3]};
            }
    }
    __device__ __forceinline__ void take(float (&x)[kOwn], int from = 0) const {
#pragma unroll
        for (int four = 0; four < kOwn / 4; ++four) {
            const int token = ToeplitzTile<T>::first(0, four / 2) + four % 2 * 4;
            const float4 sums = *reinterpret_cast<const float4*>(shared.scratch + from + place_of_sum(token, flip()));
            x[4 * four] = sums.x, x[4 * four + 1] = sums.y, x[4 * four + 2] = sums.z, x[4 * four + 3] = sums.w;
        }
    }
};

// Of a block of kChannels warps; `first` is the shared memory of the first.
template <class T, int kChannels, int kParts, class Shared>
struct MediumColumns {
    using Parts = PairParts<kParts>;
    static constexpr int kVector = 16 / int(sizeof(T)), kVectors = kOwn / kVector;  // channels of a vector; a thread's tokens
    static constexpr int kVectorsOfToken = kChannels / kVector;
    static_assert(kChannels % kVector == 0 && 32 * kChannels / kVectorsOfToken * kVectors == kTileTokens);

    struct Own {
        alignas(16) T items[kOwn];

        __device__ __forceinline__ float operator[](int i) const { return to_float(items[i]); }
        __device__ __forceinline__ void set(int i, float x) { items[i] = from_float<T>(x); }
    };

    Shared* first;
    int batch, first_channel, channels, end;  // the block's first channel, and how many the tensors have

    __device__ __forceinline__ MediumColumns(Shared* first, const HyenaShare& share, int channels)
        : first(first),
          batch(share.batch),
          first_channel(share.column - static_cast<int>(threadIdx.x) / 32),
          channels(channels),
          end(share.end) {}

    // Opaque: keeps what depends on the thread alone from being hoisted out of loops, where it spills.
    __device__ __forceinline__ static int thread() {
        unsigned x = threadIdx.x;
        asm volatile("" : "+r"(x));
        return static_cast<int>(x % (32 * kChannels));
    }
    __device__ __forceinline__ static int own_channel() { return thread() % kVectorsOfToken * kVector; }
    __device__ __forceinline__ static int own_token() { return thread() / kVectorsOfToken * kVectors; }
    // So that vectors of a token lie in different banks.
    __device__ __forceinline__ static int flip_of(int channel) { return channel / kVector % 2 * 4; }
    __device__ __forceinline__ static int flip() { return flip_of(static_cast<int>(threadIdx.x) / 32); }
    __device__ __forceinline__ static void meet() { __syncthreads(); }

    // Vectors exist as a whole: rows of channels begin on 16 bytes.
    __device__ __forceinline__ bool exists(int token) const { return first_channel + own_channel() < channels && token < end; }
    __device__ __forceinline__ T* at(const HyenaTensor& x, int token) const {
        int opaque_batch = batch;  // as thread()
        asm volatile("" : "+r"(opaque_batch));
        return static_cast<T*>(x.data) + opaque_batch * x.batch + first_channel + own_channel() + token * x.token;
    }
    __device__ __forceinline__ void load(Own& to, const HyenaTensor& from, int tile) const { load_from(to, from, tile, 0); }
    __device__ __forceinline__ void load_from(Own& to, const HyenaTensor& from, int tile, int begin) const {
        const int token = tile + own_token();
        const T* const data = at(from, token);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            auto& raw = reinterpret_cast<Raw<16>&>(to.items[i * kVector]);
            raw.bits = {};
            if (exists(token + i) && token + i >= begin) raw.load_streaming(data + i * from.token);
        }
    }
    __device__ __forceinline__ void store(const Own& from, const HyenaTensor& to, int tile) const {
        const int token = tile + own_token();
        T* const data = at(to, token);
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            if (exists(token + i)) reinterpret_cast<const Raw<16>&>(from.items[i * kVector]).store_global(data + i * to.token);
    }
    __device__ __forceinline__ void multiply_by_mask(float (&x)[kOwn], const HyenaMask& mask, int tile) const {
        if (mask.numbers.data == nullptr) return;
#pragma unroll 1
        for (int vector = 0; vector < kVectors; ++vector) {  // not unrolled: few calls have masks, and registers are short
            const int token = tile + own_token() + vector;
            const float factor = token < end ? mask_at(mask, batch, token) : 0.f;
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                if (i / kVector == vector) x[i] *= factor;
        }
    }

    // Pairs are numbered by channels, then by tokens.
    static constexpr int kPairsOfChannel = kVectors / 2;
    __device__ __forceinline__ static Parts parts_of(const float (&x)[kOwn]) {
        Parts parts;
#pragma unroll
        for (int i = 0; i < Parts::kPairsOfThread; ++i) {
            const int item = i % kPairsOfChannel * 2 * kVector + i / kPairsOfChannel;
            unsigned pair[kParts];
            split_pair(pair, x[item], x[item + kVector]);
#pragma unroll
            for (int part = 0; part < kParts; ++part) parts.at[part][i] = pair[part];
        }
        return parts;
    }
    __device__ __forceinline__ static Parts product(const Own& x, const Own& y) {
        if constexpr (kIsBf16<T>) {
            const Parts of_channels = multiply_bf16(x.items, y.items);
            Parts parts;
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int channel = 0; channel < kVector; ++channel) {
                    const unsigned(&from)[Parts::kPairsOfThread] = of_channels.at[part];
                    parts.at[part][channel] =
                        __byte_perm(from[channel / 2], from[kVector / 2 + channel / 2], channel % 2 == 0 ? 0x5410 : 0x7632);
                }
            return parts;
        } else {
            float numbers[kOwn];
            multiply(numbers, x, y);
            return parts_of(numbers);
        }
    }
    template <auto kRing>
    __device__ __forceinline__ void keep(const Parts& parts, int tile) const {
        const int channel = own_channel(), pair = (tile + own_token()) / 2;
        const auto ring = band_ring(first[channel].*kRing, flip_of(channel));
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            char* const to = reinterpret_cast<char*>(&ring.pair(part, pair));
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                void* const of_channel = to + i * sizeof(Shared);
                if constexpr (kPairsOfChannel == 1) {
                    *static_cast<unsigned*>(of_channel) = parts.at[part][i];
                } else {
                    *static_cast<uint2*>(of_channel) = {parts.at[part][2 * i], parts.at[part][2 * i + 1]};
                }
            }
        }
    }
    __device__ __forceinline__ void take(float (&x)[kOwn], int from = 0) const {
        const int channel = own_channel();
        const float* const first_sums = first[channel].scratch + from + place_of_sum(own_token(), flip_of(channel));
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const auto* const of_channel =
                reinterpret_cast<const float*>(reinterpret_cast<const char*>(first_sums) + i * sizeof(Shared));
#pragma unroll
            for (int j = 0; j < kVectors; j += 2) {
                const float2 sums = *reinterpret_cast<const float2*>(of_channel + j);
                x[j * kVector + i] = sums.x;
                x[(j + 1) * kVector + i] = sums.y;
            }
        }
    }
};

}  // namespace gdn_cuda::conv
