// gdn/ring_decode: tokens of the call and of the ring: loads to shared memory, scores, decays, and what is stored in the ring.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/mma.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/gdn/ring_decode/place.cuh>
#include <gdn_cuda/kernels/recurrence/code_pairs.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>

namespace gdn_cuda::gdn {

// Where a row's 16-byte vector is in shared memory: eight rows have one vector in different banks, as ldmatrix reads them, and
// two rows four, which lanes (g, t) of a quarter of a warp read at once.
__device__ __forceinline__ int ring_vector_at(int row, int vector) {
    return vector ^ ((row & 1) << 2 | (row >> 1 & 3));
}

// Copies rows of args.dk elements, of which each begins at first + row * stride; zeros up to head_k.
template <RingDecodeConfig kConfig, class Row>
__device__ __forceinline__ void load_token_rows(Row* to, int count, int dk, bool whole_vectors, const auto& row_at) {
    using Io = Storage<kConfig.io>;
    constexpr int kVectors = kConfig.token_vectors(), kElements = RingDecodeConfig::kVectorElements;
#pragma unroll 1
    for (int i = threadIdx.x; i < count * kVectors; i += kConfig.threads()) {
        const int row = i / kVectors, vector = i % kVectors, at = vector * kElements;
        const Io* const from = row_at(row);
        auto* const place = to[row] + ring_vector_at(row, vector);
        const bool exists = at < dk;
        if (whole_vectors) {
            cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(place)), exists ? from + at : from, exists);
        } else {
            Vector<Io, kElements, false> copy;
            if (exists)
                copy.load(from + at);
            else
                copy.clear();
            copy.store(reinterpret_cast<Io*>(place));
        }
    }
}

template <RingDecodeConfig kConfig>
__device__ __forceinline__ void load_new_tokens(RingDecodeSharedPlan<kConfig>& shared, const RingDecodeArgs& args,
                                                const RingPlace<kConfig>& place) {
    load_token_rows<kConfig>(shared.tokens, 2 * place.length, args.dk, args.whole_vectors, [&](int row) {
        return place.token_of(row % 2 == 0 ? args.key : args.query, row / 2, place.key_head);
    });
}
template <RingDecodeConfig kConfig>
__device__ __forceinline__ void load_stored_tokens(RingDecodeSharedPlan<kConfig>& shared, const RingDecodeArgs& args,
                                                   const RingPlace<kConfig>& place) {
    load_token_rows<kConfig>(shared.keys, place.stored, args.dk, true,
                             [&](int entry) { return place.ring_key(args, entry, place.key_head); });
    using Update = Storage<kConfig.updates()>;
    constexpr int kElements = 16 / int(sizeof(Update)), kVectors = RingDecodeSharedPlan<kConfig>::kRows / kElements;
#pragma unroll 1
    for (int i = threadIdx.x; i < place.stored * kVectors; i += kConfig.threads()) {
        const int entry = i / kVectors, vector = i % kVectors;
        if (vector * kElements < place.rows)
            cp_async_16(shared.updates[entry] + vector, place.ring_updates(args, entry) + vector * kElements);
    }
}

// A lane of the first warp has a token's gates and an entry's decay.
template <RingDecodeConfig kConfig>
struct RingGates {
    RawGates raw;

    __device__ __forceinline__ static GateForms forms(const RingDecodeArgs& args) {
        return {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = args.beta_factor};
    }
    __device__ __forceinline__ void load(const RingDecodeArgs& args, const RingPlace<kConfig>& place, int token, int head) {
        raw.load(args, scalar_offset(args.gate, place.sequence, place.start + token, head),
                 scalar_offset(args.beta, place.sequence, place.start + token, head), head, forms(args));
    }
    __device__ __forceinline__ TokenScalars scalars(const RingDecodeArgs& args) const {
        TokenScalars found;
        raw.finish(args, forms(args), found);
        return found;
    }
};

// Products of the decays after each of the ring's entries; 0 where one of them is.
template <RingDecodeConfig kConfig>
__device__ __forceinline__ void store_decays(RingDecodeSharedPlan<kConfig>& shared, float decay, int stored, int lane) {
    constexpr unsigned kAll = 0xffffffffu;
    float from = lane < stored ? decay : 1.f;  // the product from the lane's entry on
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float later = __shfl_down_sync(kAll, from, step);
        if (lane + step < 32) from *= later;
    }
    const float next = __shfl_down_sync(kAll, from, 1);
    if (lane < stored) shared.after[lane] = lane == 31 ? 1.f : next;
    if (lane == 0) shared.state_decay = from;
}

// sums += 16 rows of `left`, from `first` on and kStep after them, times up to 8 of `right`. Rows of `left` past the last are
// that one again, and columns without a row of `right` are 0. Which elements of a row are multiplied with each other is up to
// the caller's layout, as long as it is the same on both sides: lane t has vectors t, t + 4, ... of each.
template <DType kType, int kVectors, int kTiles, int kStep, class Row>
__device__ __forceinline__ void multiply_rows(float (&sums)[kTiles][4], const Row* left, int first, int last, const Row* right,
                                              int first_column, int columns) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, column = first_column + g;
#pragma unroll
    for (int i = 0; i < kVectors / 4; ++i) {
        const int v = 4 * i + t;
        uint4 c{};
        if (column < columns) c = *reinterpret_cast<const uint4*>(right[column] + ring_vector_at(column, v));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            const int upper = min(first + tile * kStep + g, last), lower = min(first + tile * kStep + g + 8, last);
            const uint4 a = *reinterpret_cast<const uint4*>(left[upper] + ring_vector_at(upper, v)),
                        b = *reinterpret_cast<const uint4*>(left[lower] + ring_vector_at(lower, v));
            mma_m16n8k16<kType>(sums[tile], {a.x, b.x, a.y, b.y}, c.x, c.y);
            mma_m16n8k16<kType>(sums[tile], {a.z, b.z, a.w, b.w}, c.z, c.w);
        }
    }
}
// Calls store(row, column, sum) for a lane's sums.
__device__ __forceinline__ void each_sum(const float (&sums)[4], int first_row, int first_column, const auto& store) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) store(first_row + g + i / 2 * 8, first_column + 2 * t + i % 2, sums[i]);
}

// Scores of 16 rows with all new keys and queries.
template <RingDecodeConfig kConfig, int kRowCount, class Row>
__device__ __forceinline__ void store_scores(float (&to)[kRowCount][RingDecodeSharedPlan<kConfig>::kColumns],
                                             const RingDecodeSharedPlan<kConfig>& shared, const Row* left, int first, int count,
                                             int vectors) {
#pragma unroll 1
    for (int column = 0; column < vectors; column += 8) {
        float sums[1][4] = {};
        multiply_rows<kConfig.io, kConfig.token_vectors(), 1, 0>(sums, left, first, count - 1, shared.tokens, column, vectors);
        each_sum(sums[0], first, column, [&](int row, int at, float sum) {
            if (row < count) to[row][at] = sum;
        });
    }
}

// Each new key and query as a sum of two vectors of the dtype that products with states take: rows 2 n and 2 n + 1.
// The largest element becomes 1 to 2, so that neither overflows.
template <RingDecodeConfig kConfig>
__device__ __forceinline__ void store_parts(RingDecodeSharedPlan<kConfig>& shared, int vectors) {
    using Io = Storage<kConfig.io>;
    constexpr DType kType = kConfig.product();
    constexpr int kPerLane = kConfig.head_k / 32, kElements = RingDecodeConfig::kVectorElements;
    const int lane = threadIdx.x % 32, column = lane * kPerLane;
#pragma unroll 1
    for (int vector = threadIdx.x / 32; vector < vectors; vector += RingDecodeConfig::kWarps) {
        const Io* const from =
            reinterpret_cast<const Io*>(shared.tokens[vector][ring_vector_at(vector, column / kElements)].bytes) +
            column % kElements;
        float x[kPerLane], most = 0.f;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) x[i] = to_float(from[i]), most = fmaxf(most, fabsf(x[i]));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        const UnitScale unit(most);
        if (lane == 0) shared.part_scale[vector] = unit.inverse;
        const auto place = [&](int part) {
            const int row = 2 * vector + part;
            return reinterpret_cast<unsigned*>(shared.parts[row][ring_vector_at(row, column / kElements)].bytes) +
                   column % kElements / 2;
        };
#pragma unroll
        for (int i = 0; i < kPerLane / 2; ++i) {
            const float low = x[2 * i] * unit.scale, high = x[2 * i + 1] * unit.scale;
            const unsigned near = pack<kType>(low, high);
            place(0)[i] = near;
            place(1)[i] = pack_residual<kType>(low, high, near);
        }
    }
}

// Stores key, decay and update of the new tokens in the ring: each block the updates of its rows, the first of a key head keys,
// the first of a head decays; where they replace entries, the last block that has read those stores keys and decays.
template <RingDecodeConfig kConfig>
__device__ __forceinline__ void store_tokens(const RingDecodeSharedPlan<kConfig>& shared, const RingDecodeArgs& args,
                                             const RingPlace<kConfig>& place) {
    constexpr int kElements = RingDecodeConfig::kVectorElements;
    const int thread = threadIdx.x;
    if (thread < place.rows)
#pragma unroll 1
        for (int t = 0; t < place.length; ++t)
            place.ring_updates(args, place.next + t)[thread] =
                from_float<Storage<kConfig.updates()>>(shared.products[2 * t][thread]);
    if (place.overwrites()) {
        if (!shared.is_last) return;
        const int key_heads = args.heads / args.heads_per_key;
#pragma unroll 1
        for (int i = thread; i < place.length * key_heads * args.dk; i += kConfig.threads()) {
            const int row = i / args.dk, c = i % args.dk, t = row / key_heads, key_head = row % key_heads;
            place.ring_key(args, place.next + t, key_head)[c] = place.token_of(args.key, t, key_head)[c];
        }
#pragma unroll 1
        for (int i = thread; i < place.length * args.heads; i += kConfig.threads()) {
            const int t = i / args.heads, head = i % args.heads;
            RingGates<kConfig> gates;
            gates.load(args, place, t, head);
            *place.ring_decay(args, place.next + t, head) = gates.scalars(args).decay;
        }
        return;
    }
    if (place.first_row != 0) return;
    if (thread < place.length) *place.ring_decay(args, place.next + thread, place.head) = shared.decay[thread];
    if (place.head % args.heads_per_key != 0) return;
    const int vectors = args.dk / kElements;
#pragma unroll 1
    for (int i = thread; i < place.length * vectors; i += kConfig.threads()) {
        const int t = i / vectors, vector = i % vectors;
        Raw<16> copy;
        copy.load(shared.tokens[2 * t] + ring_vector_at(2 * t, vector));
        copy.store(place.ring_key(args, place.next + t, place.key_head) + vector * kElements);
    }
}

}  // namespace gdn_cuda::gdn
