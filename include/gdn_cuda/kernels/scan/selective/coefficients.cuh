// B and C of a tile in a selective scan, fp32 in shared memory, where all channels of a block read them. A thread loads a few
// vectors of eight floats, along tokens or along states, whichever is contiguous in memory, one pass ahead. Unaligned ones
// are read as aligned 16-byte vectors, as in elements.cuh.
#pragma once

#include <gdn_cuda/kernels/common/unaligned_vector.cuh>
#include <gdn_cuda/kernels/scan/selective/tile.cuh>

namespace gdn_cuda::scan {

// kBoth: B and C; otherwise in.B alone. Shared has their tiles and the buffers of loads in flight, Args has the tensors, as in
// selective_forward.
template <class Shared, class Args, bool kBoth>
struct SelectiveCoefficients {
    static constexpr int kTokens = Shared::kTokens, kGroup = Shared::kConfiguration.group(),
                         kParts = Shared::kConfiguration.parts();
    static constexpr int kVectors = Shared::kVectors;  // a thread
    using Vector = RawVector<8, Shared::kConfiguration.is_narrow>;
    using Read = UnalignedVector<Shared::kConfiguration.is_narrow>;
    using GeneralTile = TileKind<Plain::none, Shared::kConfiguration.is_narrow>;

    const Args& args;
    Shared& shared;
    int length;                 // the sequence's or segment's
    char* addresses[kVectors];  // the thread's vectors in the first tile

    __device__ __forceinline__ Vector& in_flight(int i) const {
        return reinterpret_cast<Vector&>(shared.coefficients_in_flight[i][threadIdx.x]);
    }

    // A vector's place in its tile and in memory.
    struct Place {
        const Coefficients* from;
        float (*to)[Shared::kRowPitch];
        int n, token;
        bool along_tokens;

        __device__ __forceinline__ int n_of(int i) const { return along_tokens ? n : n + i / kParts; }
        __device__ __forceinline__ int token_of(int i) const { return along_tokens ? token + i / kParts : token; }
        __device__ __forceinline__ float& element(int i) const { return to[n_of(i)][token_of(i) * kParts + i % kParts]; }
    };
    template <class Kind>
    __device__ __forceinline__ Place place_of(Kind kind, int i, unsigned thread) const {
        constexpr unsigned kVectorsOfTensor = kGroup * kParts * kTokens / 8, kAlongTokens = kTokens * kParts / 8,
                           kAlongStates = kGroup * kParts / 8;
        const unsigned vector = thread + i * Shared::kConfiguration.kThreads, index = vector % kVectorsOfTensor;
        const Coefficients* from = &args.in.B;
        auto* to = shared.B.tile;
        if constexpr (kBoth)
            if (vector >= kVectorsOfTensor) from = &args.in.C, to = shared.C.tile;
        const bool along_tokens = kind.is_plain_along_tokens || from->n != kParts;
        const unsigned n = along_tokens ? index / kAlongTokens : index % kAlongStates * (8 / kParts);
        const unsigned token = along_tokens ? index % kAlongTokens * (8 / kParts) : index / kAlongStates;
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
                  token_stride = kind.is_plain_along_tokens ? kParts : static_cast<int>(from.token);
        return addresses[i] + static_cast<i64>(first) * (static_cast<int>(from.n) << shift) +
               static_cast<i64>(tile) * (token_stride << shift);
    }
    __device__ __forceinline__ void begin(const SelectivePlace& place) {
        length = place.length;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(GeneralTile{}, i, threadIdx.x);
            addresses[i] =
                opaque(static_cast<char*>(at.from->data) + (offset_of(place, at) << (Vector::is_wide(at.from->type) ? 2 : 1)));
        }
    }
    // Whether the tile's tokens and the pass's states, from `first` on, all exist.
    __device__ __forceinline__ bool is_whole(int tile, int first) const {
        return tile + kTokens <= length && first + kGroup <= args.in.state_size;
    }
    // Whether whole tiles of any pass are plain.
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
                fetch_unaligned(i, from, tile, first);
        }
    }
    template <class Kind>
    __device__ __forceinline__ void put(Kind kind, int tile, int first) const {
        const bool aligned = kind.is_plain || is_aligned(tile, first);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(kind, i, threadIdx.x);
            float x[8];
            (aligned ? in_flight(i) : loaded(i, address(kind, i, *at.from, tile, first), tile, first))
                .to_floats(kind.type(at.from->type), x);
            if (!aligned && !at.from->varies) continue;
            if (!kind.is_plain && !is_whole(tile, first)) {
                const int count = left(recomputed_place(i), tile, first);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    if (j >= count) x[j] = 0.f;
            }
            if (at.along_tokens) {
                auto* to = reinterpret_cast<float4*>(&at.element(0));
                to[0] = {x[0], x[1], x[2], x[3]};
                to[1] = {x[4], x[5], x[6], x[7]};
            } else {
#pragma unroll
                for (int j = 0; j < 8; ++j) at.element(j) = x[j];
            }
        }
    }

    // ---- Tiles that are not whole or not aligned. Places are recomputed, so that they take no registers in the recurrence.

    __device__ __forceinline__ Place recomputed_place(int i) const { return place_of(GeneralTile{}, i, opaque(threadIdx.x)); }
    // How many floats of the row exist from the vector's first one on; negative if none.
    __device__ __forceinline__ int left(const Place& at, int tile, int first) const {
        constexpr int kNone = -8;
        const int states = (args.in.state_size - first - at.n) * kParts, tokens = (length - tile - at.token) * kParts;
        return at.along_tokens ? (states > 0 ? tokens : kNone) : (tokens > 0 ? states : kNone);
    }
    __device__ __forceinline__ int count(const Place& at, int tile, int first) const {
        return is_whole(tile, first) ? 8 : left(at, tile, first);
    }
    __device__ __forceinline__ void fetch_unaligned(int i, const char* from, int tile, int first) const {
        const Place at = recomputed_place(i);
        if (!at.from->varies) return;
        const Read read = Read::of(from, count(at, tile, first), at.from->type);
        if (at.along_tokens || read.before == 0) read.fetch(in_flight(i), at.from->type);
        if (at.along_tokens && is_last_of_row(at)) read.fetch_last(*row_padding(at), at.from->type);
    }
    // The thread's vector; call after cp_async_wait. All vectors of a warp belong to one tensor.
    __device__ __forceinline__ Vector loaded(int i, const char* from, int tile, int first) const {
        const Place at = recomputed_place(i);
        const DType type = at.from->type;
        const int before = Read::before_of(from);
        __syncwarp();
        Vector x = in_flight(i);
        if (at.along_tokens)
            x = Read::joined(x, is_last_of_row(at) ? *row_padding(at) : (&in_flight(i))[1].vectors[0], before, type);
        else if (at.from->varies && before != 0)
            x = Read::of(from, count(at, tile, first), type).load(type);
        __syncwarp();  // the next fetch overwrites it
        return x;
    }
    // Along tokens, the last 16-byte vector of a row is copied to the padding after that row of the tile.
    __device__ __forceinline__ static bool is_last_of_row(const Place& at) { return at.token == kTokens - 8 / kParts; }
    __device__ __forceinline__ static uint4* row_padding(const Place& at) {
        return reinterpret_cast<uint4*>(&at.to[at.n][kTokens * kParts]);
    }
};

}  // namespace gdn_cuda::scan
