// One token or several of a filter in modal form, with states in slots of a pool:
//
//     s ← e^{log_poles} s + x1 v,   y = x2 (Σ residues s + D x1 v)
//
// A row, a channel of a sequence, has 4 or 16 lanes of a warp, and a lane 4 neighbouring states in registers. Poles are raised
// once a call. A slow one is applied as s + (p − 1) s: p rounded to fp32 would change the rate of its decay, by 3 % at e^−1e−6.
//
// Bound by bytes, 2 S numbers of state a row, and at few sequences by the latency of two loads in turn (slot, state). Residues
// and poles come from L1 and L2: sequences share them.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step_rows.cuh>

namespace gdn_cuda::conv {

// Four numbers of a row from `first` on, of which `count` exist.
template <bool kVectors>
__device__ __forceinline__ void load_four(float (&x)[4], const Tagged& from, i64 at, i64 stride, int first, int count) {
    if constexpr (kVectors) {
        Vector<float, 4, true> loaded;
        loaded.clear();
        if (first < count) loaded.load(static_cast<const float*>(from.data) + at + first);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = loaded[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = first + i < count ? load_number(from, at + (first + i) * stride) : 0.f;
    }
}

template <HyenaModalStepConfig kConfig>
__global__ void __launch_bounds__(kHyenaStepThreads) hyena_modal_step(const __grid_constant__ HyenaModalStepArgs args) {
    constexpr int kElements = kConfig.elements();
    constexpr float kOffsetBelow = 0.25f;  // where p − 1 is applied
    const int lane = threadIdx.x % kConfig.lanes, first_state = lane * kElements;
    const HyenaStepRow row(args, static_cast<i64>(blockIdx.x) * kConfig.rows() + threadIdx.x / kConfig.lanes);
    if (row.exists && !row.runs) row.fill(args.out, args.tokens, lane, kConfig.lanes);

    const Tagged states{args.states, args.state_type};
    float state[kElements]{}, residue[kElements]{}, rate[kElements]{}, D = 0.f;
    bool offset[kElements]{};
    if (row.runs) {
        load_four<kConfig.vectors>(state, states, row.state, args.state_position, first_state, args.count);
        load_four<kConfig.vectors>(residue, args.residues, row.group * args.residues_group, args.residues_state, first_state,
                                   args.count);
        load_four<kConfig.vectors>(rate, args.log_poles, row.group * args.log_poles_group, args.log_poles_state, first_state,
                                   args.count);
        D = load_number(args.D, row.channel * args.D_channel);
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
        const float log_pole = rate[i];
        offset[i] = fabsf(log_pole) < kOffsetBelow;
        rate[i] = offset[i] ? expm1_small(log_pole) : exp_fast(log_pole);
    }

    const i64 x2 = row.first(args.x2), x1 = row.first(args.x1), v = row.first(args.v), out = row.first(args.out);
    for (int t = 0; t < args.tokens; ++t) {
        float gate = 0.f, u = 0.f;
        if (row.runs) {
            gate = load_number(args.x2.values, x2 + t * args.x2.token);
            u = load_number(args.x1.values, x1 + t * args.x1.token) * load_number(args.v.values, v + t * args.v.token);
        }
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            state[i] = fmaf(rate[i], state[i], (offset[i] ? state[i] : 0.f) + u);
            if (first_state + i < args.count) sum = fmaf(residue[i], state[i], sum);
        }
        sum = fmaf(D, u, group_sum<kConfig.lanes>(sum));
        if (row.runs && lane == 0)
            store_number(const_cast<void*>(args.out.values.data), args.out.values.type, out + t * args.out.token, gate * sum);
    }
    if (!row.runs) return;
    if constexpr (kConfig.vectors) {
        Vector<float, 4, true> last;
#pragma unroll
        for (int i = 0; i < kElements; ++i) last.set(i, state[i]);
        if (first_state < args.count) last.store(static_cast<float*>(args.states) + row.state + first_state);
    } else {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
            if (first_state + i < args.count)
                store_number(args.states, args.state_type, row.state + (first_state + i) * args.state_position, state[i]);
        }
    }
}

}  // namespace gdn_cuda::conv
