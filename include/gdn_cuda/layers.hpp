// What stands around Gated Delta Net and convolutions in a layer: gdn_cuda/layers says what each computes and takes.
#pragma once

#include <array>
#include <gdn_cuda/kernels/layers/rms_norm/plan.cuh>
#include <gdn_cuda/options.hpp>
#include <limits>
#include <span>
#include <tuple>

namespace gdn_cuda {

// As the operators' schemas name them, in the order of the enumeration.
inline constexpr std::array kGateActivationNames = {"silu", "swish", "sigmoid"};
namespace layers {
constexpr std::span<const char* const> names_of(GateActivation) {
    return kGateActivationNames;
}
}  // namespace layers
namespace conv {
using layers::GateActivation;  // its first name
}

// Where a layer's projections have their parts: gdn_decode_layer says what each is. The names are the schema's, in this order.
enum class LayerLayout : int { qwen3_next, qwen3_5, split };
inline constexpr std::array kLayerLayoutNames = {"qwen3_next", "qwen3_5", "split"};
constexpr std::span<const char* const> names_of(LayerLayout) {
    return kLayerLayoutNames;
}

}  // namespace gdn_cuda

// Functions that take tensors would be hidden too.
#pragma GCC visibility push(default)

namespace gdn_cuda {

struct GDN_HOLDS_TENSORS FusedGdnGating {
    static constexpr const char* name = "fused_gdn_gating";
    Given A_log, dt_bias, a, b;

    GDN_FIELDS(A_log, dt_bias, a, b)
};
// (beta, gate)
std::tuple<Tensor, Tensor> fused_gdn_gating(const FusedGdnGating& arguments);

// The logarithm of every channel's decay; without A_log its exponential is 1.
struct GDN_HOLDS_TENSORS FusedKdaGating {
    static constexpr const char* name = "fused_kda_gating";
    Given a;
    OptionalTensor A_log = {}, dt_bias = {};
    GateBound bound = {};

    GDN_FIELDS(a, A_log, dt_bias, bound)
};
Tensor fused_kda_gating(const FusedKdaGating& arguments);

// z and a: with LayerLayout::split. conv_pool: (slots, C, columns), state_pool: (slots, heads_v, dv, dk).
struct GDN_HOLDS_TENSORS GdnDecodeLayer {
    static constexpr const char* name = "gdn_decode_layer";
    Given qkvz, ba, conv_weight;
    OptionalTensor conv_bias = {};
    RawGates gates;
    Given norm_weight;
    Written conv_pool, state_pool;
    OptionalTensor state_indices = {}, z = {}, a = {};
    int64_t heads_k = 0, heads_v = 0, dk = 0, dv = 0;
    LayerLayout layout = LayerLayout::qwen3_next;
    double norm_eps = 1e-6;
    bool silu = true;  // behind the convolution
    layers::GateActivation gate_activation = layers::GateActivation::silu;
    VerifyOptions verify = {};
    std::optional<int64_t> null_slot = {};
    OptionalWritten step_conv = {};
    StepStates steps = {};
    std::optional<double> scale = {};
    Output out = {};

    GDN_FIELDS(qkvz, ba, conv_weight, conv_bias, gates, norm_weight, conv_pool, state_pool, state_indices, z, a, heads_k,
               heads_v, dk, dv, layout, norm_eps, silu, gate_activation, verify, null_slot, step_conv, steps, scale, out)
};
// out
Tensor gdn_decode_layer(const GdnDecodeLayer& arguments);

// qkv: (B, C), C = 2 Hk dk + Hv dv; a: (B, Hv, dk), b: (B, Hv), dt_bias: (Hv, dk) or flat, z: (B, Hv dv), with norm_weight (dv)
// or neither. conv_pool: (slots, C, columns), or (slots, Hk dk, columns) with key_conv_pool and value_conv_pool; state_pool:
// (slots, Hv, dv, dk).
struct GDN_HOLDS_TENSORS KdaDecodeLayer {
    static constexpr const char* name = "kda_decode_layer";
    Given qkv, a, b, conv_weight;
    OptionalTensor conv_bias = {};
    DecodeGates gates = {};
    GateBound bound = {};
    OptionalTensor z = {}, norm_weight = {};
    Written conv_pool;
    OptionalWritten key_conv_pool = {}, value_conv_pool = {};
    Written state_pool;
    OptionalTensor state_indices = {};
    double norm_eps = 1e-5;
    bool silu = true;  // behind the convolution
    layers::GateActivation gate_activation = layers::GateActivation::sigmoid;
    std::optional<int64_t> null_slot = {};
    std::optional<double> scale = {};
    Output out = {};

    GDN_FIELDS(qkv, a, b, conv_weight, conv_bias, gates, bound, z, norm_weight, conv_pool, key_conv_pool, value_conv_pool,
               state_pool, state_indices, norm_eps, silu, gate_activation, null_slot, scale, out)
};
// out
Tensor kda_decode_layer(const KdaDecodeLayer& arguments);

// xBC: (B, C), C = H P + 2 groups N; dt: (B, H); A, dt_bias: (H); D: (H) or (H, P); z: (B, H P). conv_pool: (slots, C,
// columns), state_pool: (slots, H, P, N).
struct GDN_HOLDS_TENSORS Mamba2DecodeLayer {
    static constexpr const char* name = "mamba2_decode_layer";
    Given xBC, dt, conv_weight;
    OptionalTensor conv_bias = {};
    Given A;
    OptionalTensor D = {}, dt_bias = {}, z = {};
    Written conv_pool, state_pool;
    OptionalTensor state_indices = {};
    int64_t groups = 1;
    bool silu = true;  // behind the convolution
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = std::numeric_limits<double>::infinity();
    std::optional<int64_t> null_slot = {};
    OptionalWritten state_scales = {};  // for an int8 pool: (slots, H, P, N / 32) fp32
    Output out = {};

    GDN_FIELDS(xBC, dt, conv_weight, conv_bias, A, dt_softplus, D, dt_bias, z, conv_pool, state_pool, state_indices,
               state_scales, groups, silu, dt_lowest, dt_highest, null_slot, out)
};
// out
Tensor mamba2_decode_layer(const Mamba2DecodeLayer& arguments);

// x, gate: (…, D), weight: (D), float32, bfloat16 or float16, each on its own. group_size: columns that are normalised
// together.
struct GDN_HOLDS_TENSORS RmsNormGated {
    static constexpr const char* name = "rms_norm_gated";
    Given x;
    OptionalTensor gate = {}, weight = {};
    double eps = 1e-5;
    layers::GateActivation activation = layers::GateActivation::silu;
    bool norm_before_gate = true;
    std::optional<int64_t> group_size = {};

    GDN_FIELDS(x, gate, weight, eps, activation, norm_before_gate, group_size)
};
// out, contiguous and of x's dtype
Tensor rms_norm_gated(const RmsNormGated& arguments);

// x: (B, D, L) of D = 2 key_heads dk + value_heads dv channels, float32, bfloat16 or float16. weight: (D, W), bias: (D),
// initial_states: (B or sequences, D, W - 1). Of the gates, all four or none: a, b: (B, L, value_heads), A_log, dt_bias:
// (value_heads).
struct GDN_HOLDS_TENSORS ConvSplitL2norm {
    static constexpr const char* name = "conv_split_l2norm";
    Given x, weight;
    OptionalTensor bias = {}, initial_states = {}, cu_seqlens = {}, a = {}, b = {}, A_log = {}, dt_bias = {};
    int64_t key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    bool l2norm = true;
    double eps = 1e-6;

    GDN_FIELDS(x, weight, bias, initial_states, cu_seqlens, a, b, A_log, dt_bias, key_heads, value_heads, dk, dv, l2norm, eps)
};
// (q, k, v, beta, gate), the last two empty without a
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> conv_split_l2norm(const ConvSplitL2norm& arguments);

// From and to slots of a pool: conv_state (slots, D, W - 1 or more). state_indices, has_initial_state: (B or sequences).
struct GDN_HOLDS_TENSORS ConvSplitL2normPrefill {
    static constexpr const char* name = "conv_split_l2norm_prefill";
    Given x, weight;
    OptionalTensor bias = {};
    Written conv_state;
    OptionalTensor state_indices = {}, has_initial_state = {}, cu_seqlens = {}, a = {}, b = {}, A_log = {}, dt_bias = {};
    int64_t key_heads = 0, value_heads = 0, dk = 0, dv = 0;
    bool l2norm = true;
    double eps = 1e-6;

    GDN_FIELDS(x, weight, bias, conv_state, state_indices, has_initial_state, cu_seqlens, a, b, A_log, dt_bias, key_heads,
               value_heads, dk, dv, l2norm, eps)
};
// As of conv_split_l2norm.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> conv_split_l2norm_prefill(const ConvSplitL2normPrefill& arguments);

}  // namespace gdn_cuda

#pragma GCC visibility pop
