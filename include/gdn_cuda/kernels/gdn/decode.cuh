// gdn/decode: the serving step. One token of every sequence; states are updated in place in a pool.
//
//     S <- exp(g) S        v' = beta (v - S k)        S <- S + v' k^T        o = scale S q
//
// Rows of S are independent, so a group of lanes owns a row: it loads the row, does one round of shuffles and stores the row
// (recurrence/state_row.cuh). A block processes the rows of one head in steps. With more than one step, each thread prefetches
// what it will use by cp.async into shared memory: an SM has up to 190 KB in flight and needs no barrier.
//
// With channel_gates, e^g is a vector and S <- S diag(e^g): a block's threads compute one channel each, and all read their
// columns' decays from shared memory. A step multiplies the row with them first, where it would else multiply with e^g, so it
// takes as many multiply-adds; columns whose decay is 0 are cleared before, as 0 times infinity would be NaN.
//
// States may be int8 codes with scales (recurrence/state_codes.cuh): a group of 32 columns is held by two or four lanes, which
// find its largest magnitude by one or two shuffles before they store it. Everything between loads and stores is the same.
//
// Bound of large batches: memory, the state read and written once. On an H200, 64 sequences of 32 heads reach 86 % of a copy's
// bandwidth with fp32 states and 76 % with bf16, 256 sequences 92 and 87 % (docs/benchmarks/decode.md).
//
// Bound of small batches: latency, as slot index, state and arithmetic depend on each other. So q, k, v and the gates are
// loaded while loads of the state are in flight, and the code is short, because instructions are loaded from memory too.
#pragma once

#include <gdn_cuda/kernels/common/cp_async_ptx.cuh>
#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <gdn_cuda/kernels/recurrence/channel_loads.cuh>
#include <gdn_cuda/kernels/recurrence/raw_gates.cuh>
#include <gdn_cuda/kernels/recurrence/state_codes.cuh>

namespace gdn_cuda::gdn {

template <DecodeConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) decode(const __grid_constant__ DecodeArgs args) {
    using Io = Storage<kConfig.io>;
    using State = Storage<kConfig.state>;
    constexpr StateLayout kLayout = kConfig.layout();
    using Slice = RowSlice<Io, kLayout, true, true>;
    using StateRow = StateSlice<State, kLayout, true, true>;
    constexpr bool kCoded = kConfig.state == DType::i8;
    constexpr int kLanes = kLayout.lanes, kVectors = kLayout.vectors(), kStages = kConfig.stages;
    constexpr int kRing = kStages > 0 ? kStages : 1;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<DecodeSharedPlan<kConfig>*>(memory);
    static_assert(kStages == 0 || sizeof(shared) == kConfig.shared_bytes());

    wait_on_dependent_grids();
    const int sequence = blockIdx.z, head = blockIdx.y;
    i64 slot = sequence;
    if (args.slots.data != nullptr) slot = load_index(args.slots, sequence * args.slots_sequence);

    const int lane = threadIdx.x % kLanes;
    const int steps = kStages > 0 ? args.steps : 1;
    const int first_row = blockIdx.x * (steps * kConfig.rows_per_step()) + threadIdx.x / kLanes;
    const auto row_of = [&](int step) { return first_row + step * kConfig.rows_per_step(); };
    const auto in_range = [&](int step) { return step < steps && row_of(step) < args.dv; };

    const auto at = [&](const DecodeArgs::Heads& heads, int h) {
        return static_cast<Io*>(heads.data) + sequence * heads.sequence + h * heads.head;
    };
    // Lane j of a row's group loads the value and stores the output of step j.
    const bool mine = in_range(lane);
    float value = mine ? to_float(at(args.value, head)[row_of(lane)]) : 0.f;
    Io* output = at(args.output, head) + row_of(lane);
    Slice query, key;
    const int key_head = static_cast<unsigned>(head) / static_cast<unsigned>(args.heads_per_key);
    query.load(at(args.query, key_head), lane, kConfig.head_k);
    key.load(at(args.key, key_head), lane, kConfig.head_k);
    GateForms forms;
    if constexpr (kConfig.fused_gates) forms = {.gate = GateForms::raw, .beta_is_logit = true, .beta_factor = args.beta_factor};
    RawGates gates;
    ChannelLoads<kConfig.head_k, kConfig.threads(), 1> channels;
    const i64 gate_at = sequence * args.gate.sequence + head * args.gate.head;
    const auto gate_of_token = [&](int) { return gate_at; };
    const i64 beta_at = sequence * args.beta.sequence + head * args.beta.head;
    if constexpr (kConfig.channel_gates) {
        forms = args.forms;
        gates.load_beta(args, beta_at);
        channels.load(args, head, 0, 1, gate_of_token);
    } else {
        gates.load(args, gate_at, beta_at, head, forms);
    }

    // Padding, or an invalid index, which the host cannot see.
    if (slot < 0 || slot == args.null_slot || slot >= args.slot_count) {
        if (mine) *output = from_float<Io>(slot >= args.slot_count ? quiet_nan() : 0.f);
        return;
    }
    const i64 head_row = static_cast<i64>(head) * args.dv;
    const StatePointer<State> state_in =
        state_pointer<State>(args.state_in, slot * args.state_in_slot, args.scales_in, slot * args.scales_in_slot);
    const StatePointer<State> state_out =
        state_pointer<State>(args.state_out, slot * args.state_out_slot, args.scales_out, slot * args.scales_out_slot);
    const auto row_at = [&](int step) { return (head_row + row_of(step)) * kConfig.head_k; };

    const auto fetch = [&](int step) {
        if (in_range(step))
#pragma unroll
            for (int i = 0; i < kVectors; ++i) {
                auto& to = shared.state[step % kRing][i][threadIdx.x].bytes;
                if constexpr (kCoded) {
                    const CodedStates row = state_in + row_at(step);
                    cp_async<sizeof(to)>(to, row.codes + StateRow::column(i, lane));
                    cp_async<4>(&shared.scales[step % kRing][i][threadIdx.x], row.scales + StateRow::group(i, lane));
                } else {
                    cp_async_16(to, state_in + row_at(step) + StateRow::column(i, lane));
                }
            }
        cp_async_fence();
    };
    StateRow loaded;
    const bool from_memory = args.state_in != nullptr;
    if constexpr (kStages > 0) {
#pragma unroll 1
        for (int step = 0; step < kStages; ++step) fetch(from_memory ? step : steps);
    } else {
        if (from_memory && in_range(0)) {
            loaded.load_streaming(state_in + row_at(0), lane, kConfig.head_k);
        } else {
            loaded.clear();
        }
    }

    TokenScalars scalars;
    bool resets_columns = false;
    if constexpr (kConfig.channel_gates) {
        scalars.decay = 1.f;  // a constant: columns decay before `advance`
        scalars.beta = gates.beta_of(args, forms);
        resets_columns = __syncthreads_or(channels.finish(args, head, 1, gate_of_token, [&](int) { return shared.decays; }));
        if constexpr (kStages == 0 && !kCoded)
            if (resets_columns) loaded.clear_where_zero(shared.decays, lane);
    } else {
        gates.finish(args, forms, scalars);
    }
    set_products<kLayout>(scalars, query, key, args.scale, args.qk_norm);

    const bool kept = from_memory && !resets(scalars);
    if (kStages == 0 && !kept) loaded.clear();

    constexpr bool kWide = kCoded && kStages > 0;  // where instructions count
    const auto& wide_query = widened<kLayout, kWide>(query);
    const auto& wide_key = widened<kLayout, kWide>(key);
    float result = 0.f;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        if constexpr (kStages > 0) {
            cp_async_wait<kStages - 1>();
            if constexpr (kConfig.channel_gates && !kCoded) {
                if (resets_columns)  // in shared memory: selects in registers cost a tenth of the loop's instructions
#pragma unroll 1
                    for (int i = 0; i < kVectors; ++i)
                        clear_where_zero(reinterpret_cast<State*>(shared.state[step % kRing][i][threadIdx.x].bytes),
                                         shared.decays + StateRow::column(i, lane), kLayout.vector);
            }
            if (kept) {
#pragma unroll
                for (int i = 0; i < kVectors; ++i) {
                    loaded.vectors[i].load(reinterpret_cast<const State*>(shared.state[step % kRing][i][threadIdx.x].bytes));
                    if constexpr (kCoded) loaded.scales[i] = shared.scales[step % kRing][i][threadIdx.x];
                }
            } else {
                loaded.clear();
            }
            fetch(from_memory ? step + kStages : steps);
        }
        float s[kLayout.per_lane];
#pragma unroll
        for (int i = 0; i < kLayout.per_lane; ++i) s[i] = loaded[i];
        if constexpr (kConfig.channel_gates) {
            RowSlice<float, kLayout, true, true> decays;
            decays.load(shared.decays, lane, kConfig.head_k);
#pragma unroll
            for (int i = 0; i < kLayout.per_lane; ++i)
                s[i] = kCoded && resets_columns ? decayed(s[i], decays[i]) : s[i] * decays[i];
        }
        const float out = advance<kLayout>(s, wide_query, wide_key, scalars, __shfl_sync(0xffffffffu, value, step, kLanes));
        if (lane == step) result = out;
        loaded.store_if(in_range(step), state_out + row_at(step), lane, kConfig.head_k, s);
    }
    launch_dependent_grids();
    if (mine) *output = from_float<Io>(result);
}

}  // namespace gdn_cuda::gdn
