// gdn/replay without the loop over rows of the state: a block's place, its tokens in shared memory, products with rows, the
// recurrence between tokens, and what is stored for the next call. replay.cuh has the formulas.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/replay/plan.cuh>
#include <gdn_cuda/kernels/recurrence/channel_loads.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>
#include <gdn_cuda/kernels/recurrence/state_row.cuh>

namespace gdn_cuda::gdn {

constexpr int kReplayVector = 8;  // elements in 16 bytes

// Where a block works: some rows of one head of one sequence.
template <ReplayConfig kConfig>
struct ReplayPlace {
    using Io = Storage<kConfig.io>;
    int sequence, head, key_head, first_row, rows;
    i64 slot;
    i64 start;   // first token, along the token stride
    int length;  // new tokens
    int bank;    // holds the stored tokens to read; new ones are written to the other bank

    // Returns how many stored tokens to apply; -1: the block has nothing to compute, and has filled its outputs.
    __device__ __forceinline__ int find(const ReplayArgs& args) {
        const int tile_rows = args.steps * kConfig.rows_per_step();
        const unsigned tiles = static_cast<unsigned>(ceil_div(args.dv, tile_rows));
        const unsigned tile = blockIdx.x % tiles, sequence_head = blockIdx.x / tiles;
        head = static_cast<int>(sequence_head % static_cast<unsigned>(args.heads));
        sequence = static_cast<int>(sequence_head / static_cast<unsigned>(args.heads));
        key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key));
        first_row = static_cast<int>(tile) * tile_rows;
        rows = min(tile_rows, args.dv - first_row);

        slot = args.slots.data == nullptr ? sequence : load_index(args.slots, sequence * args.slots_sequence);
        const i64 accepted = args.accepted.data == nullptr ? 0 : max(load_index(args.accepted, sequence), i64{0});
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        start = span.start;
        length = span.length;
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens after the last sequence
            fill(args, start + length, args.tokens, 0.f);
        Place where = place_of(args, slot);
        if (where == Place::run && (accepted > args.stored_steps || length > args.stored_steps)) where = Place::poison;
        if (where != Place::run) {
            fill(args, start, start + length, where == Place::skip ? 0.f : quiet_nan());
            return -1;
        }
        if (accepted == 0 && length == 0) return -1;
        bank = banks(args)[0] != 0.f;
        return static_cast<int>(accepted);
    }

    __device__ __forceinline__ float* banks(const ReplayArgs& args) const {
        const int banks_per_head = static_cast<int>(ceil_div(args.dv, kRowsPerBank));
        return args.banks + slot * args.banks_slot + static_cast<i64>(head) * banks_per_head + first_row / kRowsPerBank;
    }
    __device__ __forceinline__ Io* key_of(const ReplayArgs& args, int from_bank, int step) const {
        const i64 row = (static_cast<i64>(from_bank) * args.stored_steps + step) * (args.heads / args.heads_per_key) + key_head;
        return static_cast<Io*>(args.keys) + slot * args.keys_slot + row * args.dk;
    }
    __device__ __forceinline__ float* decay_of(const ReplayArgs& args, int from_bank, int step) const {
        if constexpr (kConfig.channel_gates)
            return args.decays + slot * args.decays_slot +
                   ((static_cast<i64>(from_bank) * args.stored_steps + step) * args.heads + head) * args.dk;
        return args.decays + slot * args.decays_slot + (static_cast<i64>(from_bank) * args.stored_steps + step) * args.heads +
               head;
    }
    __device__ __forceinline__ float* updates_of(const ReplayArgs& args, int step) const {
        return args.updates + slot * args.updates_slot + (static_cast<i64>(step) * args.heads + head) * args.dv + first_row;
    }
    __device__ __forceinline__ Io* row_of(const Rows& tensor, int token, int tensor_head) const {
        return static_cast<Io*>(tensor.data) + sequence * tensor.batch + (start + token) * tensor.token +
               tensor_head * tensor.head;
    }

    // Fills the outputs of tokens [first, last) in this block's rows.
    __device__ __forceinline__ void fill(const ReplayArgs& args, i64 first, i64 last, float x) const {
        Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + head * args.output.head + first_row;
#pragma unroll 1
        for (i64 token = first; token < last; ++token)
            if (static_cast<int>(threadIdx.x) < rows) outputs[token * args.output.token + threadIdx.x] = from_float<Io>(x);
    }
};

// Copies 16 bytes of a key or query, from element `at` on; zeros past dk.
template <ReplayConfig kConfig>
__device__ __forceinline__ void load_vector(void* to, const Storage<kConfig.io>* row, int at, int dk) {
    using Io = Storage<kConfig.io>;
    if constexpr (kConfig.aligned) {
        const bool exists = kConfig.exact_k || at < dk;
        cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(to)), exists ? row + at : row, exists);
    } else {
        Vector<Io, kReplayVector, false> vector;
        if (at < dk) {
            vector.load(row + at);
        } else {
            vector.clear();
        }
        vector.store(static_cast<Io*>(to));
    }
}

// Loads the keys and queries of the new tokens.
template <ReplayConfig kConfig>
__device__ __forceinline__ void load_keys_and_queries(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                                      const ReplayPlace<kConfig>& place) {
    constexpr int kVectors = kConfig.head_k / kReplayVector;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * place.length * kVectors; i += kConfig.threads()) {
        const int row_index = i / kVectors, vector = i % kVectors;
        const auto* row = place.row_of(row_index % 2 == 0 ? args.key : args.query, row_index / 2, place.key_head);
        load_vector<kConfig>(shared.keys_and_queries[row_index].bytes + vector * 16, row, vector * kReplayVector, args.dk);
    }
}

template <ReplayConfig kConfig>
__device__ __forceinline__ void load_stored_keys(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                                 const ReplayPlace<kConfig>& place, int stored) {
    constexpr int kVectors = kConfig.head_k / kReplayVector;
#pragma unroll 1
    for (int i = threadIdx.x; i < stored * kVectors; i += kConfig.threads()) {
        const int step = i / kVectors, vector = i % kVectors;
        load_vector<kConfig>(shared.stored_keys[step].bytes + vector * 16, place.key_of(args, place.bank, step),
                             vector * kReplayVector, args.dk);
    }
}

// The decays of stored tokens where every channel has one; 0 past dk.
template <ReplayConfig kConfig>
__device__ __forceinline__ void load_stored_decays(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                                   const ReplayPlace<kConfig>& place, int stored) {
    constexpr int kPerVector = 4, kVectors = kConfig.head_k / kPerVector;
#pragma unroll 1
    for (int i = threadIdx.x; i < stored * kVectors; i += kConfig.threads()) {
        const int step = i / kVectors, at = i % kVectors * kPerVector;
        const float* from = place.decay_of(args, place.bank, step);
        const bool exists = kConfig.exact_k || at < args.dk;
        float* to = &shared.stored_decays[step][at];
        if constexpr (kConfig.aligned) {
            cp_async_16_zfill(static_cast<unsigned>(__cvta_generic_to_shared(to)), exists ? from + at : from, exists);
        } else {
#pragma unroll
            for (int j = 0; j < kPerVector; ++j) to[j] = exists ? from[at + j] : 0.f;
        }
    }
}

// Multiplies the columns of a group's rows with their decays. `may_reset`: one may be 0, which clears its column, infinities
// and NaN included. Rows for which decays(r) is false stay.
template <ReplayConfig kConfig, class Decays>
__device__ __forceinline__ void decay_columns(float (&rows)[ReplayConfig::kRowsPerThread][kConfig.layout().per_lane],
                                              const float* of_columns, int lane, bool may_reset, Decays&& decays) {
    constexpr StateLayout kLayout = kConfig.layout();
    RowSlice<float, kLayout, true, true> each;
    each.load(of_columns, lane, kConfig.head_k);
#pragma unroll
    for (int r = 0; r < ReplayConfig::kRowsPerThread; ++r) {
        if (!decays(r)) continue;
        if (may_reset)
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i)
                if (each[i] == 0.f) rows[r][i] = 0.f;
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] *= each[i];
    }
}

// What the stored tokens do to a row, except that their updates from token `first` on are added.
struct StoredSteps {
    float decay;
    int first;
    bool cleared;  // one of them is a reset: the state before it, infinities and NaN included, is dropped
};

// The loads of a thread for its row, all in flight at once.
template <ReplayConfig kConfig>
struct RowLoads {
    unsigned short value[kConfig.tokens];
    float update[kConfig.tokens], decay[kConfig.tokens];

    __device__ __forceinline__ void load(const ReplayArgs& args, const ReplayPlace<kConfig>& place, int stored) {
        const int row = threadIdx.x;
        const bool mine = row < place.rows;
#pragma unroll
        for (int t = 0; t < kConfig.tokens; ++t)
            if (mine && t < place.length)
                value[t] =
                    *reinterpret_cast<const unsigned short*>(place.row_of(args.value, t, place.head) + place.first_row + row);
#pragma unroll
        for (int step = 0; step < kConfig.tokens; ++step) {
            update[step] = 0.f;
            if (step >= stored) continue;
            if constexpr (!kConfig.channel_gates) decay[step] = *place.decay_of(args, place.bank, step);
            if (mine) update[step] = place.updates_of(args, step)[row];
        }
    }

    __device__ __forceinline__ StoredSteps finish(ReplaySharedPlan<kConfig>& shared, const ReplayPlace<kConfig>& place,
                                                  int stored) const {
        const int row = threadIdx.x;
#pragma unroll
        for (int t = 0; t < kConfig.tokens; ++t)
            if (row < place.rows && t < place.length) shared.value[t][row] = value[t];
        StoredSteps steps{1.f, 0, false};
#pragma unroll
        for (int step = kConfig.tokens - 1; step >= 0; --step) {
            if (step >= stored || steps.cleared) continue;
            shared.stored[step][row] = update[step] * steps.decay;
            if constexpr (kConfig.channel_gates) continue;
            steps.decay *= decay[step];
            if (decay[step] != 0.f) continue;
            steps.cleared = true;
            steps.first = step;
        }
        return steps;
    }
};

// Multiplies a group's rows with the first `count` keys and queries, and calls store(vector, row, product). A whole warp calls.
// With gates of channels, before_token(t) is called before the key of token t, and may change the rows.
template <ReplayConfig kConfig, class BeforeToken, class Store>
__device__ __forceinline__ void multiply(const ReplaySharedPlan<kConfig>& shared, int count,
                                         float (&rows)[ReplayConfig::kRowsPerThread][kConfig.layout().per_lane], int lane,
                                         BeforeToken&& before_token, Store&& store) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = ReplayConfig::kRowsPerThread, kVectors = 4, kSums = kRows * kVectors;
    constexpr int kSumsPerLane = kSums > kLayout.lanes ? kSums / kLayout.lanes : 1;
#pragma unroll 1
    for (int first = 0; first < count; first += kVectors) {
        float sums[kSums];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
            if constexpr (kConfig.channel_gates)
                if (v % 2 == 0 && first + v < count) before_token((first + v) / 2);
            RowSlice<Io, kLayout, true, true> vector;
            const int at = min(first + v, count - 1);
            vector.load(reinterpret_cast<const Io*>(shared.keys_and_queries[at].bytes), lane, kConfig.head_k);
#pragma unroll
            for (int r = 0; r < kRows; ++r) sums[v * kRows + r] = 0.f;
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i)
#pragma unroll
                for (int r = 0; r < kRows; ++r) sums[v * kRows + r] = fmaf(rows[r][i], vector[i], sums[v * kRows + r]);
        }
        scatter_sums<kLayout.lanes>(sums, lane);
        if (kSums < kLayout.lanes && lane % (kLayout.lanes / kSums) != 0)
            continue;  // only one of the lanes that have the same sum stores it
#pragma unroll
        for (int i = 0; i < kSumsPerLane; ++i) {
            const int sum = lane * kSums / kLayout.lanes + i;
            if (first + sum / kRows < count) store(first + sum / kRows, sum % kRows, sums[i]);
        }
    }
}

// The gates of the new tokens: one thread per token.
template <ReplayConfig kConfig>
struct GateLoads {
    RawGates raw;

    __device__ __forceinline__ static GateForms forms(const ReplayArgs& args) {
        return {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = args.beta_factor};
    }

    __device__ __forceinline__ void load(const ReplayArgs& args, const ReplayPlace<kConfig>& place) {
        const i64 token = place.start + threadIdx.x;
        if constexpr (kConfig.channel_gates) {
            if (static_cast<int>(threadIdx.x) < place.length)
                raw.load_beta(args, scalar_offset(args.beta, place.sequence, token, place.head));
            return;
        }
        if (static_cast<int>(threadIdx.x) < place.length)
            raw.load(args, scalar_offset(args.gate, place.sequence, token, place.head),
                     scalar_offset(args.beta, place.sequence, token, place.head), place.head, forms(args));
    }
    __device__ __forceinline__ void finish(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                           const ReplayPlace<kConfig>& place) const {
        if (static_cast<int>(threadIdx.x) >= place.length) return;
        TokenScalars scalars;
        if constexpr (kConfig.channel_gates) {
            shared.token[threadIdx.x].beta = raw.beta_of(args, args.forms);
            return;
        }
        raw.finish(args, forms(args), scalars);
        shared.token[threadIdx.x].decay = scalars.decay;
        shared.token[threadIdx.x].beta = scalars.beta;
    }
};

// With gates of channels: sets each new token's decay to 0 if it resets all channels, else 1, and returns whether a new or a
// stored token resets one.
template <ReplayConfig kConfig>
__device__ __forceinline__ bool find_resets(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                            const ReplayPlace<kConfig>& place, int stored) {
    const int lane = threadIdx.x % 32;
    bool any = false;
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < place.length; t += kConfig.warps) {
        bool all = true;
#pragma unroll 1
        for (int c = lane; c < args.dk; c += 32) {
            const bool is_reset = shared.decays[t][c] == 0.f;
            any |= is_reset;
            all &= is_reset;
        }
        all = __all_sync(0xffffffffu, all);
        if (lane == 0) shared.token[t].decay = all ? 0.f : 1.f;
    }
#pragma unroll 1
    for (int step = 0; step < stored; ++step)
#pragma unroll 1
        for (int c = threadIdx.x; c < args.dk; c += kConfig.threads()) any |= shared.stored_decays[step][c] == 0.f;
    return __syncthreads_or(any);
}

// Computes the scalars of the new tokens, and the weight of each one's update in later ones. Ends with a barrier. `may_reset`:
// with gates of channels, whether a decay may be 0.
template <ReplayConfig kConfig>
__device__ __forceinline__ void prepare_tokens(ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                               const ReplayPlace<kConfig>& place, bool may_reset) {
    using Io = Storage<kConfig.io>;
    constexpr StateLayout kLayout = kConfig.layout();
    constexpr int kRows = ReplayConfig::kRowsPerThread, kRowsPerWarp = 32 / kLayout.lanes * kRows;
    const int tokens = place.length, lane = threadIdx.x % kLayout.lanes;
    const int thread = threadIdx.x;
#pragma unroll 1
    for (int first = thread / 32 * kRowsPerWarp; first < 2 * tokens; first += kConfig.warps * kRowsPerWarp) {
        const int mine = first + thread % 32 / kLayout.lanes * kRows;
        float rows[kRows][kLayout.per_lane];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            RowSlice<Io, kLayout, true, true> row;
            row.load(reinterpret_cast<const Io*>(shared.keys_and_queries[min(mine + r, 2 * tokens - 1)].bytes), lane,
                     kConfig.head_k);
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i) rows[r][i] = row[i];
        }
        multiply<kConfig>(
            shared, 2 * tokens, rows, lane,
            [&](int t) {  // a row is the key or query of token (mine + r) / 2, which later tokens' columns decay
                if constexpr (kConfig.channel_gates)
                    decay_columns<kConfig>(rows, shared.decays[t], lane, may_reset, [&](int r) { return (mine + r) / 2 < t; });
            },
            [&](int vector, int r, float x) {
                if (mine + r < 2 * tokens) shared.gram[vector][mine + r] = x;
            });
    }
    __syncthreads();
    const auto scale_of = [&](int vector) { return args.qk_norm ? rsqrtf(shared.gram[vector][vector] + kNormEpsilon) : 1.f; };
    if (thread < tokens) {
        ReplayToken token = shared.token[thread];
        token.key_scale = scale_of(2 * thread);
        token.query_scale = args.scale * scale_of(2 * thread + 1);
        token.first = -1;
        float decay = 1.f;
#pragma unroll 1
        for (int t = 0; t <= thread; ++t) {
            const float each = shared.token[t].decay;
            decay *= each;
            if (each == 0.f) token.first = t;
        }
        token.state_key = token.key_scale * decay;
        token.state_query = token.query_scale * decay;
        shared.token[thread].key_scale = token.key_scale;
        shared.token[thread].query_scale = token.query_scale;
        shared.token[thread].state_key = token.state_key;
        shared.token[thread].state_query = token.state_query;
        shared.token[thread].first = token.first;
    }
#pragma unroll 1
    for (int i = thread; i < tokens * tokens; i += kConfig.threads()) {
        const int later = i / tokens, earlier = i % tokens;
        if (earlier > later) continue;
        float decay = 1.f;
#pragma unroll 1
        for (int t = earlier + 1; t <= later; ++t) decay *= shared.token[t].decay;
        auto& to = shared.coefficients[later][earlier];
        to.prediction = scale_of(2 * later) * decay * shared.gram[2 * later][2 * earlier];
        to.output = args.scale * scale_of(2 * later + 1) * decay * shared.gram[2 * later + 1][2 * earlier];
    }
    __syncthreads();
}

// Computes the recurrence between tokens for a thread's row, and stores the row's outputs and updates.
template <ReplayConfig kConfig>
__device__ __forceinline__ void finish_tokens(const ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                              const ReplayPlace<kConfig>& place) {
    using Io = Storage<kConfig.io>;
    const int row = threadIdx.x;
    if (row >= place.rows) return;
    float updates[kConfig.tokens];
#pragma unroll
    for (int t = 0; t < kConfig.tokens; ++t) {
        if (t >= place.length) continue;
        const ReplayToken token = shared.token[t];
        float prediction = 0.f, output = 0.f;
        if (token.first < 0) {
            prediction = token.state_key * shared.products[2 * t][row];
            output = token.state_query * shared.products[2 * t + 1][row];
        }
#pragma unroll
        for (int earlier = 0; earlier < t; ++earlier) {
            if (earlier < token.first) continue;
            const auto& coefficients = shared.coefficients[t][earlier];
            prediction = fmaf(coefficients.prediction, updates[earlier], prediction);
            output = fmaf(coefficients.output, updates[earlier], output);
        }
        const float value = to_float(*reinterpret_cast<const Io*>(&shared.value[t][row]));
        updates[t] = token.beta * (value - prediction) * token.key_scale;
        output = fmaf(shared.coefficients[t][t].output, updates[t], output);
        place.row_of(args.output, t, place.head)[place.first_row + row] = from_float<Io>(output);
        place.updates_of(args, t)[row] = updates[t];
    }
}

// Stores the new tokens for the next call. The first block of a key head stores keys, the first block of a value head decays,
// and each block the banks of its rows.
template <ReplayConfig kConfig>
__device__ __forceinline__ void store_steps(const ReplaySharedPlan<kConfig>& shared, const ReplayArgs& args,
                                            const ReplayPlace<kConfig>& place) {
    using Io = Storage<kConfig.io>;
    constexpr int kVectors = kConfig.head_k / kReplayVector;
    if (place.length == 0) return;
    const int bank = 1 - place.bank, thread = threadIdx.x;
    if (thread < ceil_div(place.rows, kRowsPerBank)) place.banks(args)[thread] = static_cast<float>(bank);
    if (place.first_row != 0) return;
    if constexpr (kConfig.channel_gates) {
#pragma unroll 1
        for (int step = 0; step < place.length; ++step)
#pragma unroll 1
            for (int c = thread; c < args.dk; c += kConfig.threads())
                place.decay_of(args, bank, step)[c] = shared.decays[step][c];
    } else if (thread < place.length) {
        *place.decay_of(args, bank, thread) = shared.token[thread].decay;
    }
    if (place.head % args.heads_per_key != 0) return;
#pragma unroll 1
    for (int i = thread; i < place.length * kVectors; i += kConfig.threads()) {
        const int step = i / kVectors, at = i % kVectors * kReplayVector;
        if (!kConfig.exact_k && at >= args.dk) continue;
        Vector<Io, kReplayVector, kConfig.aligned> vector;
        vector.load(reinterpret_cast<const Io*>(shared.keys_and_queries[2 * step].bytes) + at);
        vector.store(place.key_of(args, bank, step) + at);
    }
}

}  // namespace gdn_cuda::gdn
