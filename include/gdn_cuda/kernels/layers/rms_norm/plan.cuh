// Configuration and arguments of layers/rms_norm and layers/rms_norm_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::layers {

// Activation of the gate; swish is another name of silu.
enum class GateActivation : int { silu, swish, sigmoid };

struct RmsNormConfig {
    DType io;      // x, the output and its gradient
    bool vectors;  // 16-byte accesses, and the gate has dtype io; else single elements, with any strides and dtype of the gate
    int lanes;     // threads per row: part of a warp, or a block
    int per_lane;  // elements of a row that a thread holds in registers
    bool is_long;  // rows may be longer than lanes * per_lane: a block iterates over chunks

    constexpr bool operator==(const RmsNormConfig&) const = default;

    GDN_FIELDS(io, vectors, lanes, per_lane, is_long)

    GDN_HOST_DEVICE constexpr bool row_is_block() const { return lanes > 32; }
    GDN_HOST_DEVICE constexpr int threads() const { return row_is_block() ? lanes : 256; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads() / 32; }
    GDN_HOST_DEVICE constexpr int rows() const { return threads() / lanes; }  // per block at a time
    GDN_HOST_DEVICE constexpr int columns() const { return lanes * per_lane; }
    GDN_HOST_DEVICE constexpr bool has_short_gate() const { return vectors && bytes_of(io) == 2; }
    // Blocks per SM, limited by registers.
    GDN_HOST_DEVICE constexpr int forward_blocks() const {
        if (is_long || (per_lane > 8 && !has_short_gate())) return 512 / threads();
        return (per_lane > 8 || io == DType::f32 ? 768 : has_short_gate() ? 1280 : 1024) / threads();
    }
    GDN_HOST_DEVICE constexpr int backward_blocks() const { return (vectors ? 512 : 256) / threads(); }
};

// Per-warp sums of two values if a block has a row, double-buffered so that one barrier per reduction is enough.
template <RmsNormConfig kConfig>
struct RmsNormSharedPlan {
    float sums[2][2][kConfig.warps()];
};
// After the last row, the weight gradients of the rows that a block computes at a time are added up.
template <RmsNormConfig kConfig>
struct RmsNormBackwardSharedPlan {
    RmsNormSharedPlan<kConfig> reduction;
    float dweight[kConfig.row_is_block() ? 1 : kConfig.rows()][kConfig.row_is_block() ? 1 : kConfig.columns()];
};

// A tensor (leading dimensions, D): strides in elements, one per leading dimension after adjacent dimensions are merged.
inline constexpr int kRmsNormDims = 6;
struct RmsNormTensor {
    Tagged values;  // null if absent
    i64 strides[kRmsNormDims] = {};
    i64 column = 0;
};

struct RmsNormArgs {
    RmsNormTensor x, gate;
    Tagged weight;  // (groups * columns)
    i64 weight_column = 0;
    void* out = nullptr;  // contiguous
    unsigned sizes[kRmsNormDims] = {};
    int dims = 0;
    int rows = 0, groups = 0, columns = 0;  // columns per group; groups are normalised separately
    float inverse_columns = 0, epsilon = 0;
    bool norm_before_gate = true;
    GateActivation activation = GateActivation::silu;
};

struct RmsNormBackwardArgs {
    RmsNormArgs forward;
    RmsNormTensor grad;
    void *dx = nullptr, *dgate = nullptr;  // contiguous
    float* dweight = nullptr;              // partial sums (blocks, groups * columns)
};

}  // namespace gdn_cuda::layers
