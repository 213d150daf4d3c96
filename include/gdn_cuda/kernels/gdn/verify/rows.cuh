// The state rows of a thread in gdn/verify: loads, stores, and the update by one token.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/gdn/verify/plan.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

// Sums over a row have the same bits as in gdn/decode and gdn/recurrent, which distribute a row over more lanes (StateLayout).
// A thread here holds the elements of several of those lanes, its *parts*: it sums each part, then adds the parts in the order
// of the first shuffles there. The shuffles that remain sum all its rows at once, with the key and with the query
// (scatter_sums).
template <VerifyConfig kConfig>
struct VerifyRows {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    using Shared = VerifySharedPlan<kConfig>;
    static constexpr StateLayout kLayout = kConfig.layout();
    static constexpr int kRows = kConfig.rows_per_thread, kLanes = kConfig.lanes(), kParts = kConfig.parts(),
                         kPerPart = kLayout.per_lane, kSums = 2 * kRows, kSumsPerLane = kSums > kLanes ? kSums / kLanes : 1,
                         kLanesPerSum = kSums > kLanes ? 1 : kLanes / kSums;
    static constexpr bool kCoded = kConfig.state == DType::i8;
    static_assert(!kCoded || kParts == 1);
    using Slice = StateSlice<State, kLayout, true, true>;
    using States = StatePointer<State>;

    int lane, group;  // the thread's lane in the group of lanes that holds a row, and the group
    float s[kRows][kParts][kPerPart];

    __device__ __forceinline__ VerifyRows() : lane(threadIdx.x % kLanes), group(threadIdx.x / kLanes) {}

    // The index in the step of the thread's r-th row, and the lane of the layout that has a part.
    __device__ __forceinline__ int row_of(int r) const { return group + r * (kConfig.threads() / kLanes); }
    __device__ __forceinline__ int lane_of(int part) const { return lane + part * kLanes; }

    // Issues copies of the step's first `rows` rows, which start at `states`, to shared memory.
    __device__ __forceinline__ void fetch(Shared& shared, const States& states, int rows) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
            if (row_of(r) < rows)
#pragma unroll
                for (int part = 0; part < kParts; ++part)
#pragma unroll
                    for (int i = 0; i < kLayout.vectors(); ++i) {
                        auto& to = shared.state[r][part][i][threadIdx.x].bytes;
                        if constexpr (kCoded) {
                            const States row = states + row_of(r) * kConfig.head_k;
                            cp_async<Shared::kVectorBytes>(to, row.codes + Slice::column(i, lane));
                            cp_async<4>(&shared.scales[r][i][threadIdx.x], row.scales + Slice::group(i, lane));
                        } else {
                            cp_async_16(to, states + row_of(r) * kConfig.head_k + Slice::column(i, lane_of(part)));
                        }
                    }
    }
    // Reads the step's rows from shared memory into registers; rows past `rows` are zero.
    __device__ __forceinline__ void read(const Shared& shared, int rows) {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                Slice slice;
#pragma unroll
                for (int i = 0; i < kLayout.vectors(); ++i) {
                    slice.vectors[i].load(reinterpret_cast<const State*>(shared.state[r][part][i][threadIdx.x].bytes));
                    if constexpr (kCoded) slice.scales[i] = shared.scales[r][i][threadIdx.x];
                }
                if (row_of(r) >= rows) slice.clear();
#pragma unroll
                for (int i = 0; i < kPerPart; ++i) s[r][part][i] = slice[i];
            }
    }
    // All threads of the block take part.
    __device__ __forceinline__ void store(const States& states, int rows) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                Slice slice;
                slice.store_if(row_of(r) < rows, states + row_of(r) * kConfig.head_k, lane_of(part), kConfig.head_k,
                               s[r][part]);
            }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (auto& row : s)
#pragma unroll
            for (auto& part : row)
#pragma unroll
                for (float& x : part) x = 0.f;
    }

    // Updates the rows by one token, as `advance` of recurrence/state_row.cuh: each row's output overwrites its value.
    // `first_row` is the first row of the step; `resets_columns`: with gates of channels, whether a decay may be 0.
    __device__ __forceinline__ void advance(Shared& shared, int t, int first_row, bool resets_columns) {
        TokenScalars scalars = shared.scalars[t];
        if constexpr (kConfig.channel_gates) {
            scalars.decay = 1.f;  // a constant: columns have decayed before the update
            decay_columns(shared.decays[t], resets_columns);
        } else if (resets(scalars)) {
            clear();
        }
        float key[kParts][kPerPart], sums[kSums];
        load(shared.key[t].elements, key);
        multiply(key, sums);
        {
            float query[kParts][kPerPart];
            load(shared.query[t].elements, query);
            multiply(query, sums + kRows);
        }
        scatter_sums<kLanes>(sums, lane);

        const int first = lane / kLanesPerSum * kSumsPerLane;  // this lane's first sum
        const bool has_query_sums = first >= kRows;            // else it has sums with the key
        unsigned short* const values = &shared.value[t][first_row];
        float correction[kSumsPerLane];
#pragma unroll
        for (int i = 0; i < kSumsPerLane; ++i) {
            auto& value = reinterpret_cast<Io&>(values[row_of((first + i) % kRows)]);
            const float state_key = sums[i] * scalars.key_scale, state_query = sums[i] * scalars.query_scale;
            correction[i] = scalars.beta * (to_float(value) - scalars.decay * state_key);
            const float other = __shfl_xor_sync(0xffffffffu, correction[i], kLanes / 2);
            const float out = fmaf(other, scalars.query_key, scalars.decay * state_query);
            if (has_query_sums && lane % kLanesPerSum == 0) value = from_float<Io>(out);
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const float along_key =
                __shfl_sync(0xffffffffu, correction[r % kSumsPerLane], r / kSumsPerLane * kLanesPerSum, kLanes) *
                scalars.key_scale;
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int i = 0; i < kPerPart; ++i) s[r][part][i] = fmaf(along_key, key[part][i], scalars.decay * s[r][part][i]);
        }
    }

  private:
    __device__ __forceinline__ void decay_columns(const float* of_columns, bool may_reset) {
        float decays[kParts][kPerPart];
        load(of_columns, decays);
        if (may_reset)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int i = 0; i < kPerPart; ++i)
                    if (decays[part][i] == 0.f)
#pragma unroll
                        for (int r = 0; r < kRows; ++r) s[r][part][i] = 0.f;
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int part = 0; part < kParts; ++part)
#pragma unroll
                for (int i = 0; i < kPerPart; ++i) s[r][part][i] *= decays[part][i];
    }
    __device__ __forceinline__ void load(const float* row, float (&x)[kParts][kPerPart]) const {
        constexpr int kUnit = 4;
#pragma unroll
        for (int part = 0; part < kParts; ++part)
#pragma unroll
            for (int i = 0; i < kPerPart; i += kUnit) {
                Vector<float, kUnit, true> unit;
                unit.load(row + Slice::column(i / kLayout.vector, lane_of(part)) + i % kLayout.vector);
#pragma unroll
                for (int j = 0; j < kUnit; ++j) x[part][i + j] = unit.items[j];
            }
    }
    __device__ __forceinline__ void multiply(const float (&x)[kParts][kPerPart], float* sums) const {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            float part_sums[kParts];
#pragma unroll
            for (int part = 0; part < kParts; ++part) {
                part_sums[part] = 0.f;
#pragma unroll
                for (int i = 0; i < kPerPart; ++i) part_sums[part] = fmaf(s[r][part][i], x[part][i], part_sums[part]);
            }
#pragma unroll
            for (int step = kParts / 2; step > 0; step /= 2)
#pragma unroll
                for (int part = 0; part < kParts / 2; ++part)
                    if (part < step) part_sums[part] += part_sums[part + step];
            sums[r] = part_sums[0];
        }
    }
};

}  // namespace gdn_cuda::gdn
