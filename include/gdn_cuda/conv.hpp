// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <gdn_cuda/arguments.hpp>
#include <tuple>

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

// x1, x2, v: (B, D, L), float32, bfloat16 or float16, contiguous or the transposed view of (B, L, D), other strides more
// slowly. weight: (groups, 1, K), K up to 32, bias: (D), in the same type or float32. padding_mask: (B, L). initial_state: (B,
// D, K - 1).
struct GDN_HOLDS_TENSORS HyenaShort {
    static constexpr const char* name = "hyena_short";
    Given x1, x2, v, weight;
    OptionalTensor bias = {}, padding_mask = {}, initial_state = {};
    bool gated_bias = false;

    GDN_FIELDS(x1, x2, v, weight, bias, padding_mask, initial_state, gated_bias)
};
// (y, state)
std::tuple<Tensor, Tensor> hyena_short(const HyenaShort& arguments);

// The same tensors, K up to 1024; the first tap meets the current token, and the bias is multiplied by x1 * v.
struct GDN_HOLDS_TENSORS HyenaMedium {
    static constexpr const char* name = "hyena_medium";
    Given x1, x2, v, weight, bias;
    OptionalTensor padding_mask = {}, initial_state = {};

    GDN_FIELDS(x1, x2, v, weight, bias, padding_mask, initial_state)
};
// (y, state)
std::tuple<Tensor, Tensor> hyena_medium(const HyenaMedium& arguments);

// The same tensors. residues, log_poles: (groups, S), S up to 64; initial_state: (B, D, S).
struct GDN_HOLDS_TENSORS HyenaLong {
    static constexpr const char* name = "hyena_long";
    Given x1, x2, v, residues, log_poles, bias;
    OptionalTensor initial_state = {};

    GDN_FIELDS(x1, x2, v, residues, log_poles, bias, initial_state)
};
// (y, state)
std::tuple<Tensor, Tensor> hyena_long(const HyenaLong& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
