// Checks that operators on layers/decode_layer share.
#pragma once

#include <gdn_cuda/kernels/layers/decode_layer/plan.cuh>

#include "../../operators/tensor.hpp"

namespace gdn_cuda::layers {

// Sizes of a layer. rows(): rows of all value heads; channels(): channels of the convolution.
struct LayerSizes {
    int64_t sequences, tokens, key_heads, value_heads, dk, dv;

    int64_t heads_per_key() const { return value_heads / key_heads; }
    int64_t keys() const { return key_heads * dk; }
    int64_t rows() const { return value_heads * dv; }
    int64_t channels() const { return 2 * keys() + rows(); }
};

// The checks of a call, and its projection, whose device and dtype the other tensors follow.
struct LayerChecks : Checks {
    View projection;
    const char* projection_name;

    void head_dims(const char* dk_name, int64_t dk, const char* dv_name, int64_t dv) const;
    // A number of heads from which no product overflows.
    bool is_head_count(int64_t heads) const { return heads >= 1 && heads <= 1 << 16; }
    // fp32, bf16 or fp16, and fp64 beside an fp64 projection, on its device.
    void number(const char* argument, const View& view) const;
    // The same, of `size` numbers.
    Tagged numbers(const char* argument, const View& view, int64_t size, const char* layout) const;
    // The convolution's weight (channels, taps) and bias.
    void convolution(const View& weight, const View& bias, int64_t channels, int64_t taps, DecodeLayerArgs& args) const;
    // The same for a weight of another layout, whose dimensions these are, and whose shape is checked.
    void tap_strides(const View& weight, int channel, int tap, const View& bias, int64_t channels, DecodeLayerArgs& args) const;
    // (slots, channels, `columns` or more)
    DecodeLayerArgs::ConvStates conv_pool(const char* argument, const View& pool, int64_t slots, int64_t channels,
                                          int64_t columns, const char* layout) const;
    // States (slots, Hv, dv, dk) or (rows, tokens, Hv, dv, dk).
    void states(const char* argument, const View& states, int rank, const LayerSizes& sizes) const;
    void norm_eps(double norm_eps) const;
    void scale(const std::optional<double>& scale) const;
};

// ---- Whether the convolution can be read four channels at a time: all tensors of one 16-bit dtype and 8-byte aligned, and a
// state of three columns that is contiguous along columns or along channels.

enum class UnitPool { none, by_channels, by_columns };
UnitPool unit_pool(const View& pool, const View& projection);
// The rows of a projection; true for an undefined view. `units`: of 8 bytes, that four elements take.
bool has_unit_rows(const View& rows, int units = 1);
// A weight (C, 4) of the projection's dtype, `or_fp32`, and its bias.
bool has_unit_weights(const View& weight, const View& bias, const View& projection, bool or_fp32 = false);
bool has_unit_bias(const View& bias, const View& projection);
bool is_unit_type(const View& weight, const View& projection);

}  // namespace gdn_cuda::layers
