// Loads and conversion of a token's gates: shared by the kernels of the recurrence.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

// The offset of a token's scalar for one head.
__device__ __forceinline__ i64 scalar_offset(const Scalars& scalars, i64 sequence, i64 token, i64 head) {
    return sequence * scalars.batch + token * scalars.token + head * scalars.head;
}

// The gates of a token and head, unconverted. Kernels load them early, and convert them once loads of the state are in flight.
struct RawGates {
    unsigned gate, beta, A_log, dt_bias;

    // An absent gate is 0, an absent beta 1. `gate_at` and `beta_at` are offsets (scalar_offset).
    template <class Args>
    __device__ __forceinline__ void load(const Args& args, i64 gate_at, i64 beta_at, int head, const GateForms& forms) {
        gate = args.gate.values.data == nullptr ? 0u : load_raw(args.gate.values, gate_at);
        load_beta(args, beta_at);
        if (forms.gate != GateForms::raw) return;
        A_log = load_raw(args.A_log, head);
        dt_bias = args.dt_bias.data == nullptr ? 0u : load_raw(args.dt_bias, head);
    }
    template <class Args>
    __device__ __forceinline__ void load_beta(const Args& args, i64 beta_at) {
        beta = args.beta.values.data == nullptr ? __float_as_uint(1.f) : load_raw(args.beta.values, beta_at);
    }
    // The logarithm of the decay; with GateForms::decay the decay itself.
    template <class Args>
    __device__ __forceinline__ float gate_of(const Args& args, const GateForms& forms) const {
        const float g = to_float(gate, args.gate.values.type);
        if (forms.gate != GateForms::raw) return g;
        return log_decay(to_float(A_log, args.A_log.type), g + to_float(dt_bias, args.dt_bias.type));
    }
    template <class Args>
    __device__ __forceinline__ float beta_of(const Args& args, const GateForms& forms) const {
        const float b = to_float(beta, args.beta.values.type);
        return forms.beta_is_logit ? forms.beta_factor * sigmoid(b) : b;
    }
    template <class Args>
    __device__ __forceinline__ void finish(const Args& args, const GateForms& forms, TokenScalars& scalars) const {
        const float g = gate_of(args, forms);
        scalars.decay = forms.gate == GateForms::decay ? g : expf(g);
        scalars.beta = beta_of(args, forms);
    }
};

}  // namespace gdn_cuda::gdn
