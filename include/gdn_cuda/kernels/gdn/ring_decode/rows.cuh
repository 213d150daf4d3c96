// gdn/ring_decode: rows of the state, in shared memory from their load on: products with keys and queries, and the state that
// is written where the ring has no more room.
#pragma once

#include <gdn_cuda/kernels/gdn/ring_decode/tokens.cuh>

namespace gdn_cuda::gdn {

// ring_vector_at for codes, of which lanes (g, t) of half a warp read 8 bytes of four rows at once.
template <int kVectors>
__device__ __forceinline__ int ring_codes_at(int row, int vector) {
    return kVectors >= 8 ? vector ^ (row & 3) << 1 : vector ^ (row & 2);
}

template <RingDecodeConfig kConfig>
struct RingRows {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    using Update = Storage<kConfig.updates()>;
    using Shared = RingDecodeSharedPlan<kConfig>;
    static constexpr int kVectors = kConfig.state_vectors(), kPerVector = 16 / int(sizeof(State));

    Shared& shared;
    const RingDecodeArgs& args;
    const RingPlace<kConfig>& place;
    State* block;   // the block's first row in the pool
    float* scales;  // of int8 states
    int groups;     // scales of a row

    __device__ __forceinline__ RingRows(Shared& shared, const RingDecodeArgs& args, const RingPlace<kConfig>& place)
        : shared(shared), args(args), place(place) {
        const i64 first = static_cast<i64>(place.head) * args.dv + place.first_row;
        block = static_cast<State*>(args.pool) + place.slot * args.pool_slot + first * args.dk;
        if constexpr (kConfig.codes()) {
            groups = args.dk / kCodeGroup;
            scales = args.scales + place.slot * args.scales_slot + first * groups;
        }
    }
    __device__ __forceinline__ static int vector_at(int row, int vector) {
        return kConfig.codes() ? ring_codes_at<kVectors>(row, vector) : ring_vector_at(row, vector);
    }

    // 16 bytes a thread and copy, contiguous over the block; zeros past dk.
    __device__ __forceinline__ void load() const {
        constexpr int kRowStep = kConfig.threads() / kVectors;
        const int vector = threadIdx.x % kVectors, first = threadIdx.x / kVectors;
        const bool exists = vector * kPerVector < args.dk;
        const State* const from = block + (exists ? vector * kPerVector : 0);
#pragma unroll
        for (int n = 0; n < Shared::kRows / kRowStep; ++n) {
            const int row = first + n * kRowStep;
            if (row >= place.rows) break;
            cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(shared.state[row] + vector_at(row, vector))),
                              from + row * args.dk, exists);
        }
        if constexpr (kConfig.codes())
            for (int i = threadIdx.x * 4; i < place.rows * groups; i += kConfig.threads() * 4)
                cp_async_16(shared.scales + i, scales + i);
    }

    // Stores the products of rows with all keys and queries.
    __device__ __forceinline__ void multiply() const {
        if constexpr (kConfig.tensor_cores())
            multiply_by_tensor_cores();
        else
            multiply_in_fp32();
    }

    // Writes the state with the ring's tokens, and the new ones unless they wait to be accepted.
    __device__ __forceinline__ void fold() const {
        // A lane has 4 columns of 8 rows at a time.
        constexpr int kColumns = 4, kRows = 8, kLanes = kConfig.head_k / kColumns < 32 ? kConfig.head_k / kColumns : 32;
        const int lane = threadIdx.x % 32, group = threadIdx.x / kLanes;
        const bool adds_new = !args.verifies();
        float new_decay = 1.f;  // of all new tokens that are added
        if (adds_new)
#pragma unroll 1
            for (int t = 0; t < place.length; ++t) new_decay *= shared.decay[t];
        const float state_decay = new_decay * shared.state_decay;
        // All lanes of a warp take part, as they share scales: rows and columns that do not exist are not stored.
#pragma unroll 1
        for (int base = 0; base < place.rows; base += kConfig.threads() / kLanes * kRows)
#pragma unroll 1
            for (int column = lane % kLanes * kColumns; column < kConfig.head_k; column += kLanes * kColumns) {
                const int first = min(base + group * kRows, place.rows - kRows);
                float wide[kRows][kColumns];
#pragma unroll
                for (int r = 0; r < kRows; ++r) load_state(wide[r], first + r, column, state_decay);
                const auto add = [&](const Vector<Io, kColumns, true>& key, float weight, const auto& update) {
                    float scaled[kColumns];
#pragma unroll
                    for (int i = 0; i < kColumns; ++i) scaled[i] = weight * key[i];
#pragma unroll
                    for (int r = 0; r < kRows; ++r)
#pragma unroll
                        for (int i = 0; i < kColumns; ++i) wide[r][i] = fmaf(update(r), scaled[i], wide[r][i]);
                };
#pragma unroll 1
                for (int j = 0; j < place.stored; ++j) {
                    const float weight = new_decay * shared.after[j];
                    if (weight == 0.f) continue;  // before a reset, whatever it was
                    Vector<Update, kRows, true> updates;
                    updates.load(reinterpret_cast<const Update*>(shared.updates[j]) + first);
                    add(token_at(shared.keys, j, column), weight, [&](int r) { return updates[r]; });
                }
#pragma unroll 1
                for (int t = 0; t < (adds_new ? place.length : 0); ++t) {
                    float after = 1.f;
#pragma unroll 1
                    for (int later = t + 1; later < place.length; ++later) after *= shared.decay[later];
                    if (after == 0.f) continue;
                    Vector<float, kRows, true> updates;
                    updates.load(shared.products[2 * t] + first);
                    add(token_at(shared.tokens, 2 * t, column), after, [&](int r) { return updates[r]; });
                }
                const bool exists = base + group * kRows < place.rows && column < args.dk;
#pragma unroll
                for (int r = 0; r < kRows; ++r) store_state(wide[r], first + r, column, exists);
            }
    }

  private:
    template <class Row>
    __device__ __forceinline__ static Vector<Io, 4, true> token_at(const Row* rows, int row, int column) {
        constexpr int kElements = RingDecodeConfig::kVectorElements;
        Vector<Io, 4, true> columns;
        columns.load(reinterpret_cast<const Io*>(rows[row][ring_vector_at(row, column / kElements)].bytes) +
                     column % kElements);
        return columns;
    }
    // A state's columns times a decay, of which 0 clears them.
    __device__ __forceinline__ void load_state(float (&to)[4], int row, int column, float decay) const {
        Vector<State, 4, true> columns;
        columns.load(reinterpret_cast<const State*>(shared.state[row][vector_at(row, column / kPerVector)].bytes) +
                     column % kPerVector);
        if constexpr (kConfig.codes()) {
            const float scale = column < args.dk ? decay * shared.scales[row * groups + column / kCodeGroup] : 0.f;
            const unsigned biased = bias_codes(reinterpret_cast<const unsigned&>(columns.items));
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = decay == 0.f ? 0.f : scale * code_of(biased, i);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) to[i] = decay == 0.f ? 0.f : decay * columns[i];
        }
    }
    __device__ __forceinline__ void store_state(float (&from)[4], int row, int column, bool exists) const {
        Vector<State, 4, true> rounded;
        if constexpr (kConfig.codes()) {
            float most = 0.f;
#pragma unroll
            for (int i = 0; i < 4; ++i) most = larger_magnitude(most, from[i]);
            const float scale = scale_of_largest(largest_of_lanes<kCodeGroup / 4>(most));
            bound_elements<4>(from, scale);
            reinterpret_cast<unsigned&>(rounded.items) = pack_codes(from, inverse_of_scale(scale));
            if (exists && column % kCodeGroup == 0) scales[row * groups + column / kCodeGroup] = scale;
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) rounded.set(i, from[i]);
        }
        if (exists) rounded.store(block + row * args.dk + column);
    }

    // multiply_rows with the block's codes, of which a lane has 8 of a group.
    __device__ __forceinline__ void multiply_codes(float (&sums)[4], int first, int column, int columns) const {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const int rows[2] = {min(first + g, place.rows - 1), min(first + g + 8, place.rows - 1)};
#pragma unroll
        for (int group = 0; group < kConfig.groups(); ++group) {
            if (group >= groups) break;
            uint2 codes[2];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                codes[r] = *reinterpret_cast<const uint2*>(shared.state[rows[r]][vector_at(rows[r], group * 2 + t / 2)].bytes +
                                                           t % 2 * 8);
            uint4 c{};
            if (column + g < columns)
                c = *reinterpret_cast<const uint4*>(shared.parts[column + g] + ring_vector_at(column + g, group * 4 + t));
            float part[4] = {};
            const CodePairs upper(codes[0].x), lower(codes[1].x), upper_next(codes[0].y), lower_next(codes[1].y);
            mma_m16n8k16<DType::f16>(part, {upper.low, lower.low, upper.high, lower.high}, c.x, c.y);
            mma_m16n8k16<DType::f16>(part, {upper_next.low, lower_next.low, upper_next.high, lower_next.high}, c.z, c.w);
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[i] = fmaf(shared.scales[rows[i / 2] * groups + group], part[i], sums[i]);
        }
    }
    __device__ __forceinline__ void multiply_by_tensor_cores() const {
        constexpr int kRows = RingDecodeConfig::kTileRows;
        const int warp = threadIdx.x / 32, vectors = 2 * place.length;
#pragma unroll 1
        for (int first = warp * kRows; first < place.rows; first += RingDecodeConfig::kWarps * kRows)
#pragma unroll 1
            for (int column = 0; column < kConfig.parts() * vectors; column += 8) {
                float sums[4] = {};
                if constexpr (kConfig.splits()) {
                    if constexpr (kConfig.codes())
                        multiply_codes(sums, first, column, 2 * vectors);
                    else
                        multiply_rows<kConfig.state, kVectors>(sums, shared.state, first, place.rows - 1, shared.parts, column,
                                                               2 * vectors);
                    const int vector = column / 2 + threadIdx.x % 4, row = first + threadIdx.x % 32 / 4;
                    if (vector >= vectors) continue;
                    const float scale = shared.part_scale[vector];
                    if (row < place.rows) shared.products[vector][row] = scale * (sums[0] + sums[1]);
                    if (row + 8 < place.rows) shared.products[vector][row + 8] = scale * (sums[2] + sums[3]);
                } else {
                    multiply_rows<kConfig.state, kVectors>(sums, shared.state, first, place.rows - 1, shared.tokens, column,
                                                           vectors);
                    each_sum(sums, first, column, [&](int row, int vector, float sum) {
                        if (row < place.rows && vector < vectors) shared.products[vector][row] = sum;
                    });
                }
            }
    }

    // Eight lanes share a row. A lane has 32 elements at a time.
    __device__ __forceinline__ void multiply_in_fp32() const {
        constexpr int kLanes = 8, kGroups = kConfig.threads() / kLanes, kLaneVectors = kVectors / kLanes,
                      kRows = 32 / (4 * kLaneVectors);
        const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
#pragma unroll 1
        for (int first = group; first - group < place.rows; first += kRows * kGroups) {
            float state[kRows][kLaneVectors][4];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const int row = min(first + r * kGroups, place.rows - 1);
#pragma unroll
                for (int v = 0; v < kLaneVectors; ++v) load_state(state[r][v], row, (v * kLanes + lane) * 4, 1.f);
            }
#pragma unroll 1
            for (int vector = 0; vector < 2 * place.length; ++vector) {
                float sums[kRows] = {};
#pragma unroll
                for (int v = 0; v < kLaneVectors; ++v) {
                    const auto columns = token_at(shared.tokens, vector, (v * kLanes + lane) * 4);
#pragma unroll
                    for (int r = 0; r < kRows; ++r)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[r] = fmaf(state[r][v][i], columns[i], sums[r]);
                }
                scatter_sums<kLanes>(sums, lane);
                const int row = first + lane * kRows / kLanes * kGroups;
                if ((kRows >= kLanes || lane % (kLanes / kRows) == 0) && row < place.rows)
                    shared.products[vector][row] = sums[0];
            }
        }
    }
};

}  // namespace gdn_cuda::gdn
