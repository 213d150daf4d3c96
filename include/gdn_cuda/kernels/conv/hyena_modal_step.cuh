// One token or several of a filter in modal form, with states in slots of a pool:
//
//     s ← e^{log_poles} s + x1 v,   y = x2 (Σ residues s + D x1 v)
//
// A channel has 4 or 16 lanes of a warp, and a lane 4 neighbouring states in registers. Poles are raised once, for all
// sequences that a block takes in turn; a sequence's state is loaded while the one before it is computed. A slow pole is
// applied as s + (p − 1) s: p rounded to fp32 would change the rate of its decay, by 3 % at e^−1e−6.
//
// Bound by bytes, 2 S numbers of state a row, and at few sequences by the latency of two loads in turn (slot, state).
#pragma once

#include <gdn_cuda/kernels/conv/hyena_step_rows.cuh>

namespace gdn_cuda::conv {

// Bits of four numbers of a row from `first` on, of which `count` exist.
template <bool kVectors>
__device__ __forceinline__ void load_four(unsigned (&x)[4], const Tagged& from, i64 at, i64 stride, int first, int count) {
    uint4 loaded{};
    if constexpr (kVectors) {
        if (first < count) loaded = *reinterpret_cast<const uint4*>(static_cast<const float*>(from.data) + at + first);
    } else {
        if (first < count) loaded.x = load_raw(from, at + first * stride);
        if (first + 1 < count) loaded.y = load_raw(from, at + (first + 1) * stride);
        if (first + 2 < count) loaded.z = load_raw(from, at + (first + 2) * stride);
        if (first + 3 < count) loaded.w = load_raw(from, at + (first + 3) * stride);
    }
    x[0] = loaded.x, x[1] = loaded.y, x[2] = loaded.z, x[3] = loaded.w;
}

template <HyenaModalStepConfig kConfig>
struct ModalStep {
    static constexpr int kLanes = kConfig.lanes, kRows = kConfig.rows(), kElements = kConfig.elements();
    static constexpr float kOffsetBelow = 0.25f;  // where p − 1 is applied

    const HyenaModalStepArgs& args;
    const int lane = threadIdx.x % kLanes, first_state = lane * kElements;
    float residue[kElements]{}, rate[kElements]{}, D = 0.f;
    bool offset[kElements]{};

    __device__ __forceinline__ void load_filter(const HyenaStepRows& rows) {
        if (!rows.exists) return;
        unsigned residues[kElements], poles[kElements];
        load_four<kConfig.vectors>(residues, args.residues, rows.group * args.residues_group, args.residues_state, first_state,
                                   args.count);
        load_four<kConfig.vectors>(poles, args.log_poles, rows.group * args.log_poles_group, args.log_poles_state, first_state,
                                   args.count);
        D = load_number(args.D, rows.channel * args.D_channel);
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            const float log_pole = number_of(poles[i], args.log_poles.type);
            residue[i] = number_of(residues[i], args.residues.type);
            offset[i] = fabsf(log_pole) < kOffsetBelow;
            rate[i] = offset[i] ? expm1_small(log_pole) : exp_fast(log_pole);
        }
    }

    struct Loaded {
        unsigned state[kElements]{};
        float gate = 0.f, x1 = 0.f, v = 0.f;  // of the first token
    };
    __device__ __forceinline__ void load(Loaded& to, const HyenaStepRow& row) const {
        if (!row.runs) return;
        load_four<kConfig.vectors>(to.state, {args.states, args.state_type}, row.state, args.state_position, first_state,
                                   args.count);
        load_token(to, row, 0);
    }
    __device__ __forceinline__ void load_token(Loaded& to, const HyenaStepRow& row, int token) const {
        to.gate = row.load(args.x2, token);
        to.x1 = row.load(args.x1, token);
        to.v = row.load(args.v, token);
    }

    __device__ __forceinline__ void run(const HyenaStepRow& row, Loaded loaded) const {
        float state[kElements];
#pragma unroll
        for (int i = 0; i < kElements; ++i) state[i] = number_of(loaded.state[i], args.state_type);
        for (int t = 0; t < args.tokens; ++t) {
            if (t > 0) load_token(loaded, row, t);
            const float u = loaded.x1 * loaded.v;
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < kElements; ++i) {
                state[i] = fmaf(rate[i], state[i], (offset[i] ? state[i] : 0.f) + u);
                if (first_state + i < args.count) sum = fmaf(residue[i], state[i], sum);
            }
            sum = fmaf(D, u, group_sum<kLanes>(sum));
            if (row.runs && lane == 0) row.store(args.out, t, loaded.gate * sum);
        }
        if (row.runs) store(row, state);
    }
    __device__ __forceinline__ void store(const HyenaStepRow& row, const float (&state)[kElements]) const {
        if constexpr (kConfig.vectors) {
            if (first_state < args.count)
                *reinterpret_cast<float4*>(static_cast<float*>(args.states) + row.state + first_state) = {state[0], state[1],
                                                                                                          state[2], state[3]};
        } else {
#pragma unroll
            for (int i = 0; i < kElements; ++i)
                if (first_state + i < args.count)
                    store_number(args.states, args.state_type, row.state + (first_state + i) * args.state_position, state[i]);
        }
    }
};

template <HyenaModalStepConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads, 6) hyena_modal_step(const __grid_constant__ HyenaModalStepArgs args) {
    step_through_sequences<ModalStep<kConfig>>(args);
}

}  // namespace gdn_cuda::conv
