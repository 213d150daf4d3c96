// gdn/ring_decode: rows of the state, in shared memory from their load on: products with keys and queries, and the state that
// is written where the ring has no more room.
#pragma once

#include <gdn_cuda/kernels/gdn/ring_decode/tokens.cuh>

namespace gdn_cuda::gdn {

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
    State* block;  // the block's first row in the pool

    __device__ __forceinline__ RingRows(Shared& shared, const RingDecodeArgs& args, const RingPlace<kConfig>& place)
        : shared(shared), args(args), place(place) {
        const i64 first = static_cast<i64>(place.head) * args.dv + place.first_row;
        block = static_cast<State*>(args.pool) + place.slot * args.pool_slot + first * args.dk;
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
            cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(shared.state[row] + ring_vector_at(row, vector))),
                              from + row * args.dk, exists);
        }
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
#pragma unroll 1
        for (int first = group * kRows; first < place.rows; first += kConfig.threads() / kLanes * kRows)
#pragma unroll 1
            for (int column = lane % kLanes * kColumns; column < args.dk; column += kLanes * kColumns) {
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
                if (adds_new) {
#pragma unroll 1
                    for (int t = 0; t < place.length; ++t) {
                        float after = 1.f;
#pragma unroll 1
                        for (int later = t + 1; later < place.length; ++later) after *= shared.decay[later];
                        if (after == 0.f) continue;
                        Vector<float, kRows, true> updates;
                        updates.load(shared.products[2 * t] + first);
                        add(token_at(shared.tokens, 2 * t, column), after, [&](int r) { return updates[r]; });
                    }
                }
#pragma unroll
                for (int r = 0; r < kRows; ++r) store_state(wide[r], first + r, column);
            }
    }

  private:
    template <class Row>
    __device__ __forceinline__ static Vector<Io, 4, true> token_at(const Row* rows, int row, int column) {
        constexpr int kElements = RingDecodeConfig::kVectorElements;
        Vector<Io, 4, true> columns;
        columns.load(reinterpret_cast<const Io*>(rows[row][ring_vector_at(row, column / kElements)].bytes) + column % kElements);
        return columns;
    }
    __device__ __forceinline__ void load_state(float (&to)[4], int row, int column, float decay) const {
        Vector<State, 4, true> columns;
        columns.load(reinterpret_cast<const State*>(shared.state[row][ring_vector_at(row, column / kPerVector)].bytes) +
                     column % kPerVector);
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = decay == 0.f ? 0.f : decay * columns[i];
    }
    __device__ __forceinline__ void store_state(const float (&from)[4], int row, int column) const {
        Vector<State, 4, true> rounded;
#pragma unroll
        for (int i = 0; i < 4; ++i) rounded.set(i, from[i]);
        rounded.store(block + row * args.dk + column);
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

    // Eight lanes share a row.
    __device__ __forceinline__ void multiply_in_fp32() const {
        constexpr int kLanes = 8, kGroups = kConfig.threads() / kLanes, kRows = Shared::kRows / kGroups,
                      kLaneVectors = kVectors / kLanes;
        const int lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
        float state[kRows][kLaneVectors][4];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const int row = min(r * kGroups + group, place.rows - 1);
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
            const int row = lane * kRows / kLanes * kGroups + group;
            if ((kRows >= kLanes || lane % (kLanes / kRows) == 0) && row < place.rows) shared.products[vector][row] = sums[0];
        }
    }
};

}  // namespace gdn_cuda::gdn
