// Configuration and arguments of layers/rms_norm and layers/rms_norm_backward, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::layers {

// The function of the gate; swish is another name of silu.
enum class GateActivation : int { silu, swish, sigmoid };

struct RmsNormConfig {
    DType io;      // x, the output and its gradient
    bool vectors;  // 16-byte accesses, the gate has the dtype io; else element by element, any strides and dtype of the gate
    int lanes;     // threads of a row: part of a warp, or a block
    int per_lane;  // elements of a row that a thread has in registers
    bool is_long;  // rows may be longer than lanes * per_lane: the block goes over them in chunks

    constexpr bool operator==(const RmsNormConfig&) const = default;

    GDN_FIELDS(io, vectors, lanes, per_lane, is_long)

    GDN_HOST_DEVICE constexpr bool row_is_block() const { return lanes > 32; }
    GDN_HOST_DEVICE constexpr int threads() const { return row_is_block() ? lanes : 256; }
    GDN_HOST_DEVICE constexpr int warps() const { return threads() / 32; }
    GDN_HOST_DEVICE constexpr int rows() const { return threads() / lanes; }  // of a block, at a time
    GDN_HOST_DEVICE constexpr int columns() const { return lanes * per_lane; }
    GDN_HOST_DEVICE constexpr bool has_short_gate() const { return vectors && bytes_of(io) == 2; }
    // Blocks of a multiprocessor, as registers allow.
    GDN_HOST_DEVICE constexpr int forward_blocks() const {
        if (is_long || (per_lane > 8 && !has_short_gate())) return 512 / threads();
        return (per_lane > 8 || io == DType::f32 ? 768 : has_short_gate() ? 1280 : 1024) / threads();
    }
    GDN_HOST_DEVICE constexpr int backward_blocks() const { return (vectors ? 512 : 256) / threads(); }
};

// Sums of warps where a row is a block: two values, in two buffers that take turns, so that one barrier a sum is enough.
template <RmsNormConfig kConfig>
struct RmsNormSharedPlan {
    float sums[2][2][kConfig.warps()];
};
// Behind the last row, the weight's gradients of rows that a block had at the same time are added up.
template <RmsNormConfig kConfig>
struct RmsNormBackwardSharedPlan {
    RmsNormSharedPlan<kConfig> reduction;
    float of_weight[kConfig.row_is_block() ? 1 : kConfig.rows()][kConfig.row_is_block() ? 1 : kConfig.columns()];
};

// A tensor (leading dimensions, D), in elements: one stride for each dimension that is left when neighbouring ones are merged.
inline constexpr int kRmsNormDims = 6;
struct RmsNormTensor {
    Tagged values;  // null: not given
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
    int rows = 0, groups = 0, columns = 0;  // columns of a group, which is normalised on its own
    float inverse_columns = 0, epsilon = 0;
    bool norm_before_gate = true;
    GateActivation activation = GateActivation::silu;
};

struct RmsNormBackwardArgs {
    RmsNormArgs forward;
    RmsNormTensor grad;
    void *of_x = nullptr, *of_gate = nullptr;  // contiguous
    float* of_weight = nullptr;                // partial sums (blocks, groups * columns)
};

}  // namespace gdn_cuda::layers
