// ssd/replay_step: a thread's part of the state, in registers from its load to its end: products with C, and the state that is
// written where the ring has no more room.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/place.cuh>

namespace gdn_cuda::ssd {

// Eight lanes share a row: a vector of theirs is 128 contiguous bytes.
template <ReplayStepConfig kConfig>
struct ReplayRows {
    using State = Storage<kConfig.state>;
    using Io = Storage<kConfig.io>;
    static constexpr int kRows = kConfig.thread_rows(), kVectors = kConfig.row_vectors(), kVector = kConfig.vector(),
                         kColumns = kConfig.lane_columns(), kLanes = ReplayStepConfig::kLanes;

    Vector<State, kVector, true> state[kRows][kVectors];
    State* block;  // the block's first row in the pool
    int lane, group;

    __device__ __forceinline__ ReplayRows(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place)
        : lane(threadIdx.x % kLanes), group(threadIdx.x / kLanes) {
        const i64 first_row = static_cast<i64>(place.group) * args.group_heads * args.channels + place.first_row;
        block = static_cast<State*>(args.pool) + place.slot * args.pool_slot + first_row * args.states;
    }

    __device__ __forceinline__ int column(int vector) const { return (vector * kLanes + lane) * kVector; }
    __device__ __forceinline__ static int row_of(int r, int group) { return r * ReplayStepConfig::groups() + group; }

    // All loads are in flight at once, none in a branch of its own: rows past the block's last are that one again.
    __device__ __forceinline__ void load(const ReplayStepArgs& args, const ReplayPlace<kConfig>& place) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            if (row_of(r, 0) >= place.rows) break;
            const State* const from = block + min(row_of(r, group), place.rows - 1) * args.states;
#pragma unroll
            for (int v = 0; v < kVectors; ++v) state[r][v].load_streaming(from + min(column(v), args.states - kVector));
        }
    }
    // Zeros in columns past the states, where they are fewer than the configuration's.
    __device__ __forceinline__ void clear_padding(const ReplayStepArgs& args) {
        if (args.states == kConfig.states) return;
#pragma unroll
        for (int r = 0; r < kRows; ++r)
#pragma unroll
            for (int v = 0; v < kVectors; ++v)
                if (column(v) >= args.states) state[r][v].clear();
    }

    // A lane's elements of a row of B or C in shared memory; zeros past the states.
    __device__ __forceinline__ void load_columns(float (&to)[kColumns], const unsigned char* bytes, int states) const {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            Vector<Io, kVector, true> columns;
            columns.clear();
            if (column(v) < states) columns.load(reinterpret_cast<const Io*>(bytes) + column(v));
#pragma unroll
            for (int i = 0; i < kVector; ++i) to[v * kVector + i] = columns[i];
        }
    }

    // Stores the products of the block's rows with every C.
    __device__ __forceinline__ void multiply(ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                             const ReplayPlace<kConfig>& place) const {
#pragma unroll 1
        for (int t = 0; t < place.length; ++t) {
            float C[kColumns], sums[kRows];
            load_columns(C, shared.C[t].bytes, args.states);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                sums[r] = 0.f;
#pragma unroll
                for (int v = 0; v < kVectors; ++v)
#pragma unroll
                    for (int i = 0; i < kVector; ++i) sums[r] = fmaf(state[r][v][i], C[v * kVector + i], sums[r]);
            }
            scatter_sums<kLanes>(sums, lane);
            if (kRows >= kLanes || lane % (kLanes / kRows) == 0)
                shared.products[t][row_of(lane * kRows / kLanes, group)] = sums[0];
        }
    }

    // Adds the accepted tokens to the state, and writes it.
    __device__ __forceinline__ void fold(const ReplayStepSharedPlan<kConfig>& shared, const ReplayStepArgs& args,
                                         const ReplayPlace<kConfig>& place) {
        constexpr int kWide = kConfig.wide_rows();
        const int row_of_weights = place.fold_row(args), entries = place.length + place.stored,
                  first_entry = args.verifies() ? place.length : 0;
#pragma unroll
        for (int first = 0; first < kRows; first += kWide) {
            if (row_of(first, 0) >= place.rows) break;
            float wide[kWide][kColumns];
            int head[kWide], first_stored[kWide], first_new[kWide];
#pragma unroll
            for (int r = 0; r < kWide; ++r) {
                head[r] = place.channel_of(args, min(row_of(first + r, group), place.rows - 1)).head;
                const auto past = shared.past[head[r]][row_of_weights];
                first_stored[r] = place.length + past.first_stored, first_new[r] = past.first_new;
#pragma unroll
                for (int v = 0; v < kVectors; ++v)
#pragma unroll
                    for (int i = 0; i < kVector; ++i)
                        wide[r][v * kVector + i] = past.state_decay == 0.f ? 0.f : past.state_decay * state[first + r][v][i];
            }
#pragma unroll 1
            for (int entry = first_entry; entry < entries; ++entry) {
                float B[kColumns];
                load_columns(B, shared.B[entry].bytes, args.states);
#pragma unroll
                for (int r = 0; r < kWide; ++r) {
                    if (entry < (entry < place.length ? first_new[r] : first_stored[r])) continue;
                    const float x = to_float(reinterpret_cast<const Io*>(shared.x[entry].bytes)[row_of(first + r, group)]),
                                weighted = shared.weights[head[r]][row_of_weights][entry] * x;
#pragma unroll
                    for (int i = 0; i < kColumns; ++i) wide[r][i] = fmaf(weighted, B[i], wide[r][i]);
                }
            }
#pragma unroll
            for (int r = 0; r < kWide; ++r) {
                const int row = row_of(first + r, group);
                State* const to = block + row * args.states;
#pragma unroll
                for (int v = 0; v < kVectors; ++v) {
                    Vector<State, kVector, true> rounded;
#pragma unroll
                    for (int i = 0; i < kVector; ++i) rounded.set(i, wide[r][v * kVector + i]);
                    if (row < place.rows && column(v) < args.states) rounded.store_global(to + column(v));
                }
            }
        }
    }
};

}  // namespace gdn_cuda::ssd
