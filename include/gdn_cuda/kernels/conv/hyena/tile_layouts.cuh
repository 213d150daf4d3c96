// How the kernels of hyena_long, whose warps have one channel each, access their tensors in either layout. hyena_medium uses
// the loads and stores of rows alone (hyena_medium/tile.cuh).
//
// A thread has 16 own elements of each tensor's tile of 512 tokens, and multiplies own elements by own elements.
// The tensor-core operands and sums of a warp are those of a row: 512 tokens of the warp's channel, eight per lane in each
// half (toeplitz/product.cuh). Two types have the same members:
//     HyenaTileRows       tokens are contiguous, or no dimension is: own elements are those of the lane's row
//     HyenaTileColumns    channels are contiguous: a block has one channel per warp. Own elements are 16 bytes of
//                         channels of two or four tokens; products move to rows and sums back, in fp32 through a tile in
//                         shared memory
//
//     Own x1, v, x2;                        tile.load(x1, args.x1, first_token); …
//     float u[16] = x1 v;                   tile.to_row(u): now u[8 half + i] belongs to the lane's row
//     sums of the row                       tile.to_own(sums): now they belong to the thread's own elements
//     sums times x2                         tile.store(y, args.y, first_token)
//
// In HyenaTileColumns all threads of the block call to_row and to_own, which have one __syncthreads (`sync`) each. to_row is
// store_own, sync and load_row; to_own is store_row, sync and load_own; so two tiles in shared memory can share a sync.
// Calls on one tile must alternate between to_row and to_own. They need no other barrier, because a lane reads and writes
// the same elements of its row, and a thread the same own elements; two to_row in succession need a sync between them. A
// warp whose channel does not exist takes part with zeros.
//
// Neither side of the tile has bank conflicts: units of four consecutive tokens are permuted by bits of their index and of
// their channel. Memory is accessed in sectors of 32 bytes if a block has 32 bytes of channels.
#pragma once

#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile.cuh>
#include <gdn_cuda/kernels/conv/hyena/tile_layouts_plan.cuh>

namespace gdn_cuda::conv {

inline constexpr int kOwn = 16;  // elements per thread
static_assert(kOwn * 32 == kTileTokens);

template <class T>
struct HyenaTileRows {
    struct Own : ToeplitzTile<T> {
        __device__ __forceinline__ float operator[](int i) const { return this->eights[i / kEight][i % kEight]; }
        __device__ __forceinline__ void set(int i, float x) { this->eights[i / kEight].items[i % kEight] = from_float<T>(x); }
    };

    HyenaStage<kTileTokens>& stage;  // the warp's
    int batch, channel, end;         // tokens from `end` on are loaded as zeros and not stored
    bool vectors;

    __device__ __forceinline__ void load(Own& to, const HyenaTensor& from, int tile) const {
        to.load(HyenaRow<T>(from, batch, channel), tile, end, vectors, stage);
    }
    // Also zeros tokens before `begin`.
    __device__ __forceinline__ void load_from(Own& to, const HyenaTensor& from, int tile, int begin) const {
        const HyenaRow<T> row(from, batch, channel);
        if (vectors && tile + kTileTokens <= end) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = ToeplitzTile<T>::first(tile, half);
                to.eights[half] = {};
                if (token >= begin) to.eights[half].load_streaming(row.data + token);
            }
            return;
        }
        T* const staged = reinterpret_cast<T*>(stage.values);
        __syncwarp();
#pragma unroll 4
        for (int i = lane_of_warp(); i < kTileTokens; i += 32) {
            const int token = tile + i;
            staged[i] = token >= begin && token < end ? row.data[token * row.token] : from_float<T>(0.f);
        }
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) to.eights[half].load(staged + ToeplitzTile<T>::first(0, half));
    }
    __device__ __forceinline__ void store(const Own& from, const HyenaTensor& to, int tile) const {
        from.store(HyenaRow<T>(to, batch, channel), tile, end, vectors, stage);
    }
    // Multiplies own values by the mask, if there is one.
    __device__ __forceinline__ void multiply_by_mask(float (&x)[kOwn], const HyenaMask& mask, int tile) const {
        if (mask.values.data == nullptr) return;
        stage_mask(stage, mask, batch, tile, end);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] *= stage.values[ToeplitzTile<T>::first(0, i / kEight) + i % kEight];
    }
    __device__ __forceinline__ void store_own(const float (&)[kOwn]) const {}
    __device__ __forceinline__ void load_row(float (&)[kOwn]) const {}
    __device__ __forceinline__ void store_row(const float (&)[kOwn]) const {}
    __device__ __forceinline__ void load_own(float (&)[kOwn]) const {}
    __device__ __forceinline__ void sync() const {}
    __device__ __forceinline__ void to_row(float (&)[kOwn]) const {}
    __device__ __forceinline__ void to_own(float (&)[kOwn]) const {}
};

// Contiguous channels in aligned 16-byte vectors; a block has kChannels warps.
template <class T, int kChannels>
struct HyenaTileColumns {
    using Shared = HyenaColumnsShared<kChannels>;
    static constexpr int kVector = 16 / int(sizeof(T)), kVectors = kOwn / kVector;  // channels per vector; vectors per thread
    static constexpr int kVectorsOfToken = kChannels / kVector, kThreads = 32 * kChannels;
    static constexpr int kStep = kThreads / kVectorsOfToken;  // tokens between a thread's vectors
    static_assert(kChannels % kVector == 0 && kVectorsOfToken <= 2 && kStep * kVectors == kTileTokens);

    struct Own {
        alignas(16) T items[kOwn];

        __device__ __forceinline__ float operator[](int i) const { return to_float(items[i]); }
        __device__ __forceinline__ void set(int i, float x) { items[i] = from_float<T>(x); }
    };

    Shared& shared;
    int batch, first_channel, channels, end;  // the block's first channel, and the tensors' number of channels

    // Opaque to the compiler, like opaque_batch: hoisting what depends on the thread alone out of loops would spill.
    __device__ __forceinline__ static int thread() { return opaque(static_cast<int>(threadIdx.x)); }
    __device__ __forceinline__ static int own_channel() { return thread() % kVectorsOfToken * kVector; }
    __device__ __forceinline__ static int own_token(int vector) { return thread() / kVectorsOfToken + vector * kStep; }
    // A vector exists as a whole or not at all: rows of channels are whole vectors.
    __device__ __forceinline__ bool exists(int tile, int vector) const {
        return first_channel + own_channel() < channels && tile + own_token(vector) < end;
    }
    __device__ __forceinline__ int opaque_batch() const { return opaque(batch); }
    __device__ __forceinline__ T* at(const HyenaTensor& x, int tile, int vector) const {
        return static_cast<T*>(x.data) + opaque_batch() * x.batch + first_channel + own_channel() +
               (tile + own_token(vector)) * x.token;
    }
    __device__ __forceinline__ void load(Own& to, const HyenaTensor& from, int tile) const { load_from(to, from, tile, 0); }
    __device__ __forceinline__ void load_from(Own& to, const HyenaTensor& from, int tile, int begin) const {
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector) {
            auto& raw = reinterpret_cast<Raw<16>&>(to.items[vector * kVector]);
            raw.bits = {};
            if (exists(tile, vector) && tile + own_token(vector) >= begin) raw.load_streaming(at(from, tile, vector));
        }
    }
    __device__ __forceinline__ void store(const Own& from, const HyenaTensor& to, int tile) const {
#pragma unroll
        for (int vector = 0; vector < kVectors; ++vector)
            if (exists(tile, vector))
                reinterpret_cast<const Raw<16>&>(from.items[vector * kVector]).store_global(at(to, tile, vector));
    }
    __device__ __forceinline__ void multiply_by_mask(float (&x)[kOwn], const HyenaMask& mask, int tile) const {
        if (mask.values.data == nullptr) return;
#pragma unroll 1
        for (int vector = 0; vector < kVectors; ++vector) {  // not unrolled, to save registers: few calls have masks
            const int token = tile + own_token(vector);
            const float factor = token < end ? mask_at(mask, opaque_batch(), token) : 0.f;
#pragma unroll
            for (int i = 0; i < kOwn; ++i)
                if (i / kVector == vector) x[i] *= factor;
        }
    }

    // A unit is four consecutive tokens, 16 bytes. A lane reads units 2 lane and 2 lane + 1 of a row; 16 lanes write
    // consecutive tokens of one channel while the other 16 write those of the next vector.
    __device__ __forceinline__ float* unit_at(int channel, int unit) const {
        return shared.rows[channel] + 4 * (unit ^ (unit / 8 % 2) ^ (channel / kVector % 2 * 4));
    }
    // The address of the thread's first element; its other channels and vectors are at constant offsets from it.
    __device__ __forceinline__ float* first_own() const {
        const int token = own_token(0);
        return unit_at(own_channel(), token / 4) + token % 4;
    }
    static_assert(kStep % 64 == 0);
    __device__ __forceinline__ static constexpr int own_offset(int i) {
        return i % kVector * kTileTokens + i / kVector * kStep;
    }
    __device__ __forceinline__ float4& row_at(int four) const {
        const int unit = 2 * (four / 2 * 32 + lane_of_warp()) + four % 2;
        return *reinterpret_cast<float4*>(unit_at(thread() / 32, unit));
    }
    __device__ __forceinline__ void store_own(const float (&x)[kOwn]) const {
        float* const own = first_own();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) own[own_offset(i)] = x[i];
    }
    __device__ __forceinline__ void load_row(float (&x)[kOwn]) const {
#pragma unroll
        for (int four = 0; four < kOwn / 4; ++four) {
            const float4 values = row_at(four);
            x[4 * four] = values.x, x[4 * four + 1] = values.y, x[4 * four + 2] = values.z, x[4 * four + 3] = values.w;
        }
    }
    __device__ __forceinline__ void store_row(const float (&x)[kOwn]) const {
#pragma unroll
        for (int four = 0; four < kOwn / 4; ++four)
            row_at(four) = {x[4 * four], x[4 * four + 1], x[4 * four + 2], x[4 * four + 3]};
    }
    __device__ __forceinline__ void load_own(float (&x)[kOwn]) const {
        const float* const own = first_own();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) x[i] = own[own_offset(i)];
    }
    __device__ __forceinline__ void sync() const { __syncthreads(); }
    __device__ __forceinline__ void to_row(float (&x)[kOwn]) const {
        store_own(x);
        sync();
        load_row(x);
    }
    __device__ __forceinline__ void to_own(float (&x)[kOwn]) const {
        store_row(x);
        sync();
        load_own(x);
    }
};

// This warp's segment. kColumns: the warps of a block have contiguous channels, of which the last may not exist, and the
// same tokens.
template <bool kColumns, int kWarps>
__device__ __forceinline__ HyenaSegment hyena_segment(const auto& args) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if constexpr (!kColumns) return HyenaSegment::of(args, static_cast<i64>(blockIdx.x) * kWarps + warp, args.channels);
    const int columns = static_cast<int>(ceil_div(args.channels, kWarps));
    HyenaSegment segment = segment_of_columns(args, blockIdx.x, columns);
    segment.column = segment.column * kWarps + warp;
    return segment;
}

// ---- Values of a row as operands and sums

__device__ __forceinline__ void begin_sums(TileSums& sums, const float (&u)[kOwn], float bias) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum_of(sums, i / kEight, i % kEight) = bias * u[i];
}
__device__ __forceinline__ void unpack_sums(float (&x)[kOwn], TileSums& sums) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) x[i] = sum_of(sums, i / kEight, i % kEight);
}
template <int kParts>
__device__ __forceinline__ TileParts<kParts> parts_of_row(const float (&u)[kOwn]) {
    return TileParts<kParts>::of(reinterpret_cast<const float(&)[2][kEight]>(u));
}
template <class Own>
__device__ __forceinline__ void multiply(float (&product)[kOwn], const Own& x, const Own& y) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) product[i] = x[i] * y[i];
}

}  // namespace gdn_cuda::conv
