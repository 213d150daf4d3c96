// How hyena_medium's kernels access their tensors in either layout, with tiles as in toeplitz/band.cuh.
//
// A thread has 16 own elements of each tensor's tile of 512 tokens, and multiplies own elements by own elements.
// Products go to shared memory as bf16 parts of pairs of tokens, which are tensor-core operands. Sums of the tile come back
// through shared memory. Two types have the same members:
//     MediumRows       tokens are contiguous, or no dimension is: own elements are eight tokens of either half of the tile
//     MediumColumns    channels are contiguous: a block has one channel per warp. Own elements are 16 bytes of channels of
//                      each of some consecutive tokens: a thread writes pairs of tokens for other warps, and reads sums of
//                      other warps
//
//     Own x1, v, x2;                           tile.load(x1, args.x1, first_token); …
//     PairParts<3> u = tile.product(x1, v)     tile.store_parts<&Shared::u>(u, first_token); tile.sync(): u is in shared memory
//     store_sums(scratch, sums, tile.flip())   tile.sync(); tile.load_sums(x): x[i] is the sum of the thread's own element i
//
// In MediumColumns `sync` is a __syncthreads. A warp whose channel does not exist takes part with zeros.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/band.cuh>

namespace gdn_cuda::conv {

template <class T>
inline constexpr bool kIsBf16 = false;
template <>
inline constexpr bool kIsBf16<__nv_bfloat16> = true;

// Fills the table of a channel's taps, with the bias added to the first tap. Returns that sum's rounding error in one bf16
// part.
template <int kTaps, int kParts>
__device__ __forceinline__ float fill_taps(BandTable<kTaps, kParts>& table, const HyenaFilter& filter, int channel, int rows,
                                           bool exists) {
    const i64 group = channel / filter.channels_a_group * filter.group;
    const float first = exists ? load_float(filter.weight, group) + bias_of(filter, channel) : 0.f;
    fill_band(table, lane_of_warp(), rows, [&](int x) {
        if (x == 0) return first;
        return x > 0 && x < filter.taps && exists ? load_float(filter.weight, group + x * filter.tap) : 0.f;
    });
    return first - unpack<DType::bf16>(pack<DType::bf16>(first, 0.f)).x;
}

// A thread's products in bf16 parts: eight pairs of tokens.
template <int kParts>
struct PairParts {
    static constexpr int kPairsOfThread = kOwn / 2;

    unsigned at[kParts][kPairsOfThread];
};

// The two bf16 parts of two products of bf16 values. They are exact: two parts have 16 bits, as many as a product.
__device__ __forceinline__ void multiply_bf16(unsigned& high, unsigned& low, unsigned x, unsigned y) {
    constexpr unsigned kMinus = 0x80008000u;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(high) : "r"(x), "r"(y), "r"(kMinus));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(low) : "r"(x), "r"(y), "r"(high ^ kMinus));
}
// The products of a thread's elements, in pairs of adjacent ones.
__device__ __forceinline__ PairParts<2> multiply_bf16(const __nv_bfloat16 (&x)[kOwn], const __nv_bfloat16 (&y)[kOwn]) {
    PairParts<2> parts;
#pragma unroll
    for (int i = 0; i < parts.kPairsOfThread; ++i)
        multiply_bf16(parts.at[0][i], parts.at[1][i], reinterpret_cast<const unsigned*>(x)[i],
                      reinterpret_cast<const unsigned*>(y)[i]);
    return parts;
}

// The same for elements of other dtypes, by way of fp32.
template <class Access, class Own>
__device__ __forceinline__ auto product_parts(const Own& x, const Own& y) {
    float products[kOwn];
    multiply(products, x, y);
    return Access::parts_of(products);
}

template <class T, int kParts, class Shared>
struct MediumRows : HyenaTileRows<T> {
    using Own = typename HyenaTileRows<T>::Own;
    using Parts = PairParts<kParts>;

    Shared& shared;

    __device__ __forceinline__ MediumRows(Shared& shared, const HyenaSegment& segment, bool vectors)
        : HyenaTileRows<T>{reinterpret_cast<HyenaStage<kTileTokens>&>(shared.scratch), segment.batch, segment.column,
                           segment.end, vectors},
          shared(shared) {}

    __device__ __forceinline__ static int flip() { return 0; }
    __device__ __forceinline__ static void sync() { __syncwarp(); }
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
            return product_parts<MediumRows>(x, y);
        }
    }
    template <auto kRing>
    __device__ __forceinline__ void store_parts(const Parts& parts, int tile) const {
        const auto ring = band_ring(shared.*kRing, flip());
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                const unsigned* const x = parts.at[part] + 4 * half;
                ring.unit(part, ToeplitzTile<T>::first(tile, half) / kEight) = {x[0], x[1], x[2], x[3]};
            }
    }
    __device__ __forceinline__ void load_sums(float (&x)[kOwn], int from = 0) const {
#pragma unroll
        for (int four = 0; four < kOwn / 4; ++four) {
            const int token = ToeplitzTile<T>::first(0, four / 2) + four % 2 * 4;
            const float4 sums = *reinterpret_cast<const float4*>(shared.scratch + from + place_of_sum(token, flip()));
            x[4 * four] = sums.x, x[4 * four + 1] = sums.y, x[4 * four + 2] = sums.z, x[4 * four + 3] = sums.w;
        }
    }
};

// Accesses of a block of kChannels warps; `first` is the first warp's shared memory.
template <class T, int kChannels, int kParts, class Shared>
struct MediumColumns {
    using Parts = PairParts<kParts>;
    static constexpr int kVector = 16 / int(sizeof(T)), kVectors = kOwn / kVector;  // channels per vector; tokens per thread
    static constexpr int kVectorsOfToken = kChannels / kVector;
    static_assert(kChannels % kVector == 0 && 32 * kChannels / kVectorsOfToken * kVectors == kTileTokens);

    struct Own {
        alignas(16) T items[kOwn];

        __device__ __forceinline__ float operator[](int i) const { return to_float(items[i]); }
        __device__ __forceinline__ void set(int i, float x) { items[i] = from_float<T>(x); }
    };

    Shared* first;
    int batch, first_channel, channels, end;  // the block's first channel, and the tensors' number of channels

    __device__ __forceinline__ MediumColumns(Shared* first, const HyenaSegment& segment, int channels)
        : first(first),
          batch(segment.batch),
          first_channel(segment.column - static_cast<int>(threadIdx.x) / 32),
          channels(channels),
          end(segment.end) {}

    // Opaque to the compiler: hoisting what depends on the thread alone out of loops would spill.
    __device__ __forceinline__ static int thread() {
        unsigned x = threadIdx.x;
        asm volatile("" : "+r"(x));
        return static_cast<int>(x % (32 * kChannels));
    }
    __device__ __forceinline__ static int own_channel() { return thread() % kVectorsOfToken * kVector; }
    __device__ __forceinline__ static int own_token() { return thread() / kVectorsOfToken * kVectors; }
    // Puts the vectors of a token into different banks.
    __device__ __forceinline__ static int flip_of(int channel) { return channel / kVector % 2 * 4; }
    __device__ __forceinline__ static int flip() { return flip_of(static_cast<int>(threadIdx.x) / 32); }
    __device__ __forceinline__ static void sync() { __syncthreads(); }

    // A vector exists as a whole or not at all: rows of channels are whole vectors.
    __device__ __forceinline__ bool exists(int token) const { return first_channel + own_channel() < channels && token < end; }
    __device__ __forceinline__ T* at(const HyenaTensor& x, int token) const {
        int opaque_batch = batch;  // opaque, as in thread()
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
    // Loads own elements by way of shared memory, without registers. A thread reads only what it copied itself, so it waits
    // for its own copies alone.
    template <int kBytes>
    __device__ __forceinline__ void fetch(HyenaOwnSlot<kBytes>& to, const HyenaTensor& from, int tile) const {
        static_assert(kBytes == int(sizeof(T)));
        const int token = tile + own_token();
        const T* const data = at(from, token);
        const unsigned slot = shared_address(to.bytes + 16 * lane_of_warp());
#pragma unroll
        for (int i = 0; i < kVectors; ++i) cp_async_16_zfill(slot + i * 32 * 16, data + i * from.token, exists(token + i));
    }
    template <int kBytes>
    __device__ __forceinline__ static Own read(const HyenaOwnSlot<kBytes>& from) {
        Own own;
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            reinterpret_cast<Raw<16>&>(own.items[i * kVector]).load(from.bytes + 16 * (i * 32 + lane_of_warp()));
        return own;
    }
    __device__ __forceinline__ void store(const Own& from, const HyenaTensor& to, int tile) const {
        const int token = tile + own_token();
        T* const data = at(to, token);
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            if (exists(token + i)) reinterpret_cast<const Raw<16>&>(from.items[i * kVector]).store_global(data + i * to.token);
    }
    __device__ __forceinline__ void multiply_by_mask(float (&x)[kOwn], const HyenaMask& mask, int tile) const {
        if (mask.values.data == nullptr) return;
#pragma unroll 1
        for (int vector = 0; vector < kVectors; ++vector) {  // not unrolled, to save registers: few calls have masks
            const int token = tile + own_token() + vector;
            const float factor = token < end ? mask_at(mask, batch, token) : 0.f;
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                if (i / kVector == vector) x[i] *= factor;
        }
    }

    // Pairs are ordered by channel, then by token.
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
            const Parts channel_pairs = multiply_bf16(x.items, y.items);
            Parts parts;
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int channel = 0; channel < kVector; ++channel) {
                    const unsigned(&from)[Parts::kPairsOfThread] = channel_pairs.at[part];
                    parts.at[part][channel] =
                        __byte_perm(from[channel / 2], from[kVector / 2 + channel / 2], channel % 2 == 0 ? 0x5410 : 0x7632);
                }
            return parts;
        } else {
            return product_parts<MediumColumns>(x, y);
        }
    }
    template <auto kRing>
    __device__ __forceinline__ void store_parts(const Parts& parts, int tile) const {
        const int channel = own_channel(), pair = (tile + own_token()) / 2;
        const auto ring = band_ring(first[channel].*kRing, flip_of(channel));
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            char* const to = reinterpret_cast<char*>(&ring.pair(part, pair));
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
                void* const words = to + i * sizeof(Shared);
                if constexpr (kPairsOfChannel == 1) {
                    *static_cast<unsigned*>(words) = parts.at[part][i];
                } else {
                    *static_cast<uint2*>(words) = {parts.at[part][2 * i], parts.at[part][2 * i + 1]};
                }
            }
        }
    }
    __device__ __forceinline__ void load_sums(float (&x)[kOwn], int from = 0) const {
        const int channel = own_channel();
        const float* const first_sums = first[channel].scratch + from + place_of_sum(own_token(), flip_of(channel));
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            const auto* const channel_sums =
                reinterpret_cast<const float*>(reinterpret_cast<const char*>(first_sums) + i * sizeof(Shared));
#pragma unroll
            for (int j = 0; j < kVectors; j += 2) {
                const float2 sums = *reinterpret_cast<const float2*>(channel_sums + j);
                x[j * kVector + i] = sums.x;
                x[(j + 1) * kVector + i] = sums.y;
            }
        }
    }
};

}  // namespace gdn_cuda::conv
