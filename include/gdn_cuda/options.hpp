// Options that several operators share, nested in the structs of their arguments. Each is an argument of the operator, which
// Python's functions have by the same name: gdn_cuda.fused_decode and gdn_cuda.recurrent_forward say what they mean.
#pragma once

#include <gdn_cuda/arguments.hpp>

namespace gdn_cuda {

// How `gate` and `beta` become the decay and the step of the recurrence.
struct GDN_HOLDS_TENSORS GateOptions {
    OptionalTensor A_log = {}, dt_bias = {};
    bool beta_is_logit = false, allow_negative_eigenvalues = false, gate_is_linear = false;

    float beta_factor() const { return allow_negative_eigenvalues ? 2.f : 1.f; }  // multiplies the sigmoid of a logit of beta

    GDN_FIELDS(A_log, dt_bias, beta_is_logit, allow_negative_eigenvalues, gate_is_linear)
};

// Beside GateOptions where a gate may have a value for every channel of the key: then the gate is raw, and its logarithm of the
// decay is lower_bound sigmoid(..).
struct GDN_HOLDS_TENSORS GateBound {
    std::optional<double> lower_bound = {};

    GDN_FIELDS(lower_bound)
};

// GateOptions for a layer's projections, whose gates are raw and whose betas are logits.
struct GDN_HOLDS_TENSORS RawGates {
    Given A_log, dt_bias;
    bool allow_negative_eigenvalues = false;

    float beta_factor() const { return allow_negative_eigenvalues ? 2.f : 1.f; }

    GDN_FIELDS(A_log, dt_bias, allow_negative_eigenvalues)
};

// Speculative verify: after how many of the last call's tokens each sequence continues.
struct GDN_HOLDS_TENSORS VerifyOptions {
    OptionalTensor num_accepted_tokens = {};

    GDN_FIELDS(num_accepted_tokens)
};

// Rows for the state after every token, instead of slots of the pool.
struct GDN_HOLDS_TENSORS StepStates {
    OptionalWritten step_states = {};
    OptionalTensor step_slots = {};

    GDN_FIELDS(step_states, step_slots)
};

}  // namespace gdn_cuda
