// B and C of a tile in a selective scan, in fp32 in shared memory, where all channels of a block use them. A thread has some
// vectors of eight real numbers, along tokens or along states as they lie in memory; they are in flight a pass ahead.
#pragma once

#include <gdn_cuda/kernels/scan/eight.cuh>
#include <gdn_cuda/kernels/scan/selective_tile.cuh>

namespace gdn_cuda::scan {

// kBoth: B and C; otherwise B alone, or what stands in its place. Shared has their tiles and what is in flight, Args the
// tensors, as those of selective_forward.
template <class Shared, class Args, bool kBoth>
struct SelectiveCoefficients {
    static constexpr int kTokens = Shared::kTokens, kGroup = Shared::kConfiguration.group(),
                         kParts = Shared::kConfiguration.parts();
    static constexpr int kVectors = Shared::kVectors;  // a thread
    using Vector = Eight<Shared::kConfiguration.is_narrow>;

    const Args& args;
    Shared& shared;
    SelectivePlace place;
    int full;                   // the end of the tiles that are whole and of aligned vectors
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
    __device__ __forceinline__ Place place_of(int i) const {
        constexpr int kOfOne = kGroup * kParts * kTokens / 8, kAlongTokens = kTokens * kParts / 8,
                      kAlongStates = kGroup * kParts / 8;
        const int vector = threadIdx.x + i * Shared::kConfiguration.kThreads, of = vector % kOfOne;
        const Coefficients* from = &args.in.B;
        auto* to = shared.B.tile;
        if constexpr (kBoth)
            if (vector >= kOfOne) from = &args.in.C, to = shared.C.tile;
        const bool along_tokens = from->n != kParts;
        const int n = along_tokens ? of / kAlongTokens : of % kAlongStates * (8 / kParts);
        const int token = along_tokens ? of % kAlongTokens * (8 / kParts) : of / kAlongStates;
        return {from, to, n, token, along_tokens};
    }
    __device__ __forceinline__ i64 offset_of(const Place& at, int tile, int first, int i) const {
        const Coefficients& from = *at.from;
        return place.batch * from.batch + place.channel / (args.in.dim / from.groups) * from.group +
               (first + at.n_of(i)) * from.n + (place.span.start + tile + at.token_of(i)) * from.token + i % kParts * from.pair;
    }

    __device__ __forceinline__ void begin() {
        full = args.coefficients_are_vectors ? place.span.length / kTokens * kTokens : 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(i);
            addresses[i] = opaque(static_cast<char*>(at.from->data) +
                                  (offset_of(at, 0, 0, 0) << (Vector::is_wide(at.from->type) ? 2 : 1)));
        }
    }
    // Of the states from `first` on.
    __device__ __forceinline__ bool is_full(int tile, int first) const {
        return tile < full && first + kGroup <= args.in.state_size;
    }
    __device__ __forceinline__ void load(int tile, int first) const {
        if (!is_full(tile, first)) return;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Coefficients& from = *place_of(i).from;
            const int shift = Vector::is_wide(from.type) ? 2 : 1;
            Vector::fetch(in_flight(i),
                          addresses[i] + static_cast<i64>(first) * (static_cast<int>(from.n) << shift) +
                              static_cast<i64>(tile) * (static_cast<int>(from.token) << shift),
                          from.type);
        }
    }
    __device__ __forceinline__ void put(int tile, int first) const {
        const bool full = is_full(tile, first);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            const Place at = place_of(i);
            if (full) {
                float x[8];
                in_flight(i).to_floats(at.from->type, x);
                if (at.along_tokens) {
                    auto* to = reinterpret_cast<float4*>(&at.to_of(0));
                    to[0] = {x[0], x[1], x[2], x[3]};
                    to[1] = {x[4], x[5], x[6], x[7]};
                } else {
#pragma unroll
                    for (int j = 0; j < 8; ++j) at.to_of(j) = x[j];
                }
            } else if (at.from->varies) {
#pragma unroll 1
                for (int element = 0; element < 8; ++element) {
                    const int j = opaque(element);
                    const bool exists = first + at.n_of(j) < args.in.state_size && tile + at.token_of(j) < place.span.length;
                    at.to_of(j) = exists ? load_number({at.from->data, at.from->type}, offset_of(at, tile, first, j)) : 0.f;
                }
            }
        }
    }
};

}  // namespace gdn_cuda::scan
