// Causal and Hyena convolutions: gdn_cuda/conv has the formulas, docs/conv.md the edge cases. Gradients exist in Python only.
#pragma once

#include <array>
#include <gdn_cuda/arguments.hpp>
#include <gdn_cuda/kernels/conv/rms_norm_plan.cuh>
#include <span>
#include <tuple>

namespace gdn_cuda {

// As the operators' schemas name them, in the order of the enumeration.
inline constexpr std::array kGateActivationNames = {"silu", "swish", "sigmoid"};
namespace conv {
constexpr std::span<const char* const> names_of(GateActivation) {
    return kGateActivationNames;
}
}  // namespace conv

}  // namespace gdn_cuda

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

// x, gate: (…, D), weight: (D), float32, bfloat16 or float16, each on its own. group_size: columns that are normalised
// together.
struct GDN_HOLDS_TENSORS RmsNormGated {
    static constexpr const char* name = "rms_norm_gated";
    Given x;
    OptionalTensor gate = {}, weight = {};
    double eps = 1e-5;
    conv::GateActivation activation = conv::GateActivation::silu;
    bool norm_before_gate = true;
    std::optional<int64_t> group_size = {};

    GDN_FIELDS(x, gate, weight, eps, activation, norm_before_gate, group_size)
};
// out, contiguous and of x's dtype
Tensor rms_norm_gated(const RmsNormGated& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
