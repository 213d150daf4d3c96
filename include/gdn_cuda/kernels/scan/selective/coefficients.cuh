// B and C of a tile in a selective scan, in fp32 in shared memory, where all channels of a block use them. A thread has some
// vectors of eight real numbers, along tokens or along states as they lie in memory; they are in flight a pass ahead. Those
// that are not aligned are read as SelectiveElements reads its own.
#pragma once

#include <gdn_cuda/kernels/scan/selective/tile.cuh>
#include <gdn_cuda/kernels/scan/selective/unaligned_vector_8.cuh>

namespace gdn_cuda::scan {

// kBoth: B and C; otherwise B alone, or what stands in its place. Shared has their tiles and what is in flight, Args the
// tensors, as those of selective_forward.
template <class Shared, class Args, bool kBoth>
struct SelectiveCoefficients {
    static constexpr int kTokens = Shared::kTokens, kGroup = Shared::kConfiguration.group(),
                         kParts = Shared::kConfiguration.parts();
    static constexpr int kVectors = Shared::kVectors;  // a thread
    using Vector = Eight<Shared::kConfiguration.is_narrow>;
    using Read = Granules<Shared::kConfiguration.is_narrow>;
    using Careful = TileKind<Plain::none, Shared::kConfiguration.is_narrow>;

    const Args& args;
    Shared& shared;
    int length;                 // of the sequence
    char* addresses[kVectors];  // of the first tile

    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.coefficients_in_flight[i][threadIdx.x]);
    }

    // Of a vector, in a tile and in memory.
    struct Place {
        const Coefficients* from;
        float (*to)[Shared::kRowPitch];
        int n, token;
        bool along_tokens;

        __device__ __forceinline__ int n_of(int i) const { return along_tokens ? n : n + i / kParts; }
        __device__ __forceinline__ int token_of(int i) const { return along_tokens ? token + i / kParts : token; }
        __device__ __forceinline__ float& to_of(int i) const { return to[n_of(i)][token_of(i) * kParts + i % kParts]; }
    };
    template <class Kind>
    __device__ __forceinline__ Place place_of(Kind kind, int i, unsigned thread) const {
        constexpr unsigned kOfOne = kGroup * kParts * kTokens / 8, kAlongTokens = kTokens * kParts / 8,
                           kAlongStates = kGroup * kParts / 8;
        const unsigned vector = thread + i * Shared::kConfiguration.kThreads, of = vector % kOfOne;
        const Coefficients* from = &args.in.B;
        auto* to = shared.B.tile;
        if constexpr (kBoth)
            if (vector >= kOfOne) from = &args.in.C, to = shared.C.tile;
        const bool along_tokens = kind.is_plain_along_tokens || from->n != kParts;
        const unsigned n = along_tokens ? of / kAlongTokens : of % kAlongStates * (8 / kParts);
        const unsigned token = along_tokens ? of % kAlongTokens * (8 / kParts) : of / kAlongStates;
        return {from, to, static_cast<int>(n), static_cast<int>(token), along_tokens};
    }
    __device__ __forceinline__ i64 offset_of(const SelectivePlace& place, const Place& at) const {
        const Coefficients& from = *at.from;
        return place.batch * from.batch + place.channel / (args.in.dim / from.groups) * from.group + at.n * from.n +
               (place.start + at.token) * from.token;
    }
    template <class Kind>
    __device__ __forceinline__ const char* address(Kind kind, int i, const Coefficients& from, int tile, int first) const {
        const int shift = Vector::is_wide(kind.type(from.type)) ? 2 : 1,
                  apart = kind.is_plain_along_tokens ? kParts : static_cast<int>(from.token);
        return addresses[i] + static_cast<i64>(first) * (static_cast<int>(from.n) << shift) +
               static_cast<i64>(tile) * (apart << shift);
    }
    __device__ __forceinline__ void begin(const SelectivePlace& place) {
        length = place.length;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(Careful{}, i, threadIdx.x);
            addresses[i] =
                opaque(static_cast<char*>(at.from->data) + (offset_of(place, at) << (Vector::is_wide(at.from->type) ? 2 : 1)));
        }
    }
    // Of the states from `first` on: whether all exist, and in aligned vectors.
    __device__ __forceinline__ bool is_whole(int tile, int first) const {
        return tile + kTokens <= length && first + kGroup <= args.in.state_size;
    }
    // Of any states.
    __device__ __forceinline__ bool may_be_plain() const {
        const auto is_plain = [&](const Coefficients& x) {
            return (x.n != kParts || !args.along_tokens) && (!Shared::kConfiguration.is_narrow || x.type == DType::bf16);
        };
        return args.coefficients_are_aligned && args.in.state_size % kGroup == 0 && is_plain(args.in.B) &&
               (!kBoth || is_plain(args.in.C));
    }
    __device__ __forceinline__ bool is_aligned(int tile, int first) const {
        return args.coefficients_are_aligned && is_whole(tile, first);
    }
    template <class Kind>
    __device__ __forceinline__ void load(Kind kind, int tile, int first) const {
        const bool aligned = kind.is_plain || is_aligned(tile, first);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Coefficients& tensor = *place_of(kind, i, threadIdx.x).from;
            const char* from = address(kind, i, tensor, tile, first);
            if (aligned)
                Vector::fetch(in_flight(i), from, kind.type(tensor.type));
            else
                fetch_granules(i, from, tile, first);
        }
    }
    template <class Kind>
    __device__ __forceinline__ void put(Kind kind, int tile, int first) const {
        const bool aligned = kind.is_plain || is_aligned(tile, first);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(kind, i, threadIdx.x);
            float x[8];
            (aligned ? in_flight(i) : settled(i, address(kind, i, *at.from, tile, first), tile, first))
                .to_floats(kind.type(at.from->type), x);
            if (!aligned && !at.from->varies) continue;
            if (!kind.is_plain && !is_whole(tile, first)) {
                const int count = left(rare_place(i), tile, first);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    if (j >= count) x[j] = 0.f;
            }
            if (at.along_tokens) {
                auto* to = reinterpret_cast<float4*>(&at.to_of(0));
                to[0] = {x[0], x[1], x[2], x[3]};
                to[1] = {x[4], x[5], x[6], x[7]};
            } else {
#pragma unroll
                for (int j = 0; j < 8; ++j) at.to_of(j) = x[j];
            }
        }
    }

    // ---- Tiles that are not whole, or not aligned. Places are computed again, so that they take no registers from the walk.

    __device__ __forceinline__ Place rare_place(int i) const { return place_of(Careful{}, i, opaque(threadIdx.x)); }
    // How many real numbers exist from the first of a vector on; negative where there are none.
    __device__ __forceinline__ int left(const Place& at, int tile, int first) const {
        constexpr int kNone = -8;
        const int states = (args.in.state_size - first - at.n) * kParts, tokens = (length - tile - at.token) * kParts;
        return at.along_tokens ? (states > 0 ? tokens : kNone) : (tokens > 0 ? states : kNone);
    }
    __device__ __forceinline__ int count(const Place& at, int tile, int first) const {
        return is_whole(tile, first) ? 8 : left(at, tile, first);
    }
    __device__ __forceinline__ void fetch_granules(int i, const char* from, int tile, int first) const {
        const Place at = rare_place(i);
        if (!at.from->varies) return;
        const Read read = Read::of(from, count(at, tile, first), at.from->type);
        if (at.along_tokens || read.before == 0) read.fetch(in_flight(i), at.from->type);
        if (at.along_tokens && is_last_of_row(at)) read.fetch_last(*behind(at), at.from->type);
    }
    // After cp_async_wait. The vectors of a warp are of one tensor.
    __device__ __forceinline__ Vector settled(int i, const char* from, int tile, int first) const {
        const Place at = rare_place(i);
        const DType type = at.from->type;
        const int before = Read::before_of(from);
        __syncwarp();
        Vector x = in_flight(i);
        if (at.along_tokens)
            x = Read::joined(x, is_last_of_row(at) ? *behind(at) : (&in_flight(i))[1].bits[0], before, type);
        else if (at.from->varies && before != 0)
            x = Read::of(from, count(at, tile, first), type).load(type);
        __syncwarp();  // what is fetched next overwrites it
        return x;
    }
    // Along tokens: where the extra granule of a row is in flight, in the padding behind a row of the tile.
    __device__ __forceinline__ static bool is_last_of_row(const Place& at) { return at.token == kTokens - 8 / kParts; }
    __device__ __forceinline__ static uint4* behind(const Place& at) {
        return reinterpret_cast<uint4*>(&at.to[at.n][kTokens * kParts]);
    }
};

}  // namespace gdn_cuda::scan
