#include "decode_layer_checks.hpp"

#include <algorithm>
#include <cmath>

#include "../../operators/float64.hpp"
#include "../gdn/head_dimensions.hpp"
#include "near_stride.hpp"

namespace gdn_cuda::layers {
namespace {

constexpr uintptr_t kUnitBytes = 8;

bool aligned(const View& view, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
}

}  // namespace

void LayerChecks::head_dims(const char* dk_name, int64_t dk, const char* dv_name, int64_t dv) const {
    GDN_REQUIRE(*this, dk <= kMostHeadRows && gdn::has_exact_kernel(static_cast<int>(dk)), dk_name,
                "dk of 64, 96, 128, 192 or 256", fmt::format("{}", dk));
    GDN_REQUIRE(*this, dv >= 8 && dv <= kMostHeadRows && dv % 8 == 0, dv_name,
                fmt::format("dv that is a multiple of 8 up to {}", kMostHeadRows), fmt::format("{}", dv));
}

void LayerChecks::number(const char* argument, const View& view) const {
    dtype_beside(*this, argument, view, *dtype_of(projection));
    device(argument, view, projection, projection_name);
}

Tagged LayerChecks::numbers(const char* argument, const View& view, int64_t size, const char* layout) const {
    shape(argument, view, {size}, layout);
    number(argument, view);
    return tagged(view);
}

void LayerChecks::convolution(const View& weight, const View& bias, int64_t channels, int64_t taps,
                              DecodeLayerArgs& args) const {
    shape("conv_weight", weight, {channels, taps}, taps == kLayerTaps ? "(2 Hk dk + Hv dv, 4)" : "(2 Hk dk + Hv dv, W)");
    tap_strides(weight, 0, 1, bias, channels, args);
}

void LayerChecks::tap_strides(const View& weight, int channel, int tap, const View& bias, int64_t channels,
                              DecodeLayerArgs& args) const {
    number("conv_weight", weight);
    args.weight = tagged(weight);
    args.weight_channel = weight.stride(channel);
    args.weight_tap = near_stride(*this, "conv_weight", weight, tap);
    args.missing_taps = static_cast<int>(kLayerTaps - weight.size(tap));
    if (!bias.defined()) return;
    args.bias = numbers("conv_bias", bias, channels, "(2 Hk dk + Hv dv,)");
    args.bias_channel = bias.stride(0);
}

DecodeLayerArgs::ConvStates LayerChecks::conv_pool(const char* argument, const View& pool, int64_t slots, int64_t channels,
                                                   int64_t columns, const char* layout) const {
    rank(argument, pool, 3, layout);
    shape(argument, pool, {slots, channels, pool.size(2)}, layout);
    GDN_REQUIRE(*this, pool.size(2) >= columns, argument, fmt::format("{} columns or more", columns), shape_text(pool));
    number(argument, pool);
    distinct(argument, pool);
    return {tagged(pool), pool.stride(0), 0, pool.stride(1), near_stride(*this, argument, pool, 2)};
}

void LayerChecks::states(const char* argument, const View& states, int rank, const LayerSizes& sizes) const {
    Checks::rank(argument, states, rank, rank == 4 ? "(slots, Hv, dv, dk)" : "(rows, tokens, Hv, dv, dk)");
    const int64_t expected[] = {sizes.value_heads, sizes.dv, sizes.dk};
    GDN_REQUIRE(*this, std::equal(expected, expected + 3, states.sizes + rank - 3), argument,
                fmt::format("states of (Hv, dv, dk) = {}", shape_text({expected[0], expected[1], expected[2]})),
                shape_text(states));
    device(argument, states, projection, projection_name);
    GDN_REQUIRE(*this, states.contiguous_tail(3) && states.aligned16(), argument, "contiguous states that start on 16 bytes",
                stride_text(states));
    distinct(argument, states);
}

void LayerChecks::norm_eps(double norm_eps) const {
    GDN_REQUIRE(*this, norm_eps >= 0 && std::isfinite(norm_eps), "norm_eps", "a number that is not negative",
                fmt::format("{}", norm_eps));
}

void LayerChecks::scale(const std::optional<double>& scale) const {
    GDN_REQUIRE(*this, !scale || std::isfinite(*scale), "scale", "a finite number", fmt::format("{}", scale.value_or(0)));
}

UnitPool unit_pool(const View& pool, const View& projection) {
    if (pool.size(2) != kLayerTaps - 1 || pool.stride(0) % 4 != 0 || !aligned(pool, kUnitBytes) ||
        pool.dtype != projection.dtype)
        return UnitPool::none;
    if (pool.stride(1) == 1 && pool.stride(2) % 4 == 0) return UnitPool::by_columns;
    return pool.stride(2) == 1 && pool.stride(1) == kLayerTaps - 1 ? UnitPool::by_channels : UnitPool::none;
}

bool has_unit_rows(const View& rows, int units) {
    if (!rows.defined()) return true;
    bool fits = aligned(rows, units * kUnitBytes);
    for (int d = 0; d + 1 < rows.rank; ++d) fits = fits && rows.stride(d) % 4 == 0;
    return fits;
}

bool has_unit_weights(const View& weight, const View& bias, const View& projection, bool or_fp32) {
    const bool type = or_fp32 ? is_unit_type(weight, projection) : weight.dtype == projection.dtype;
    return weight.size(1) == kLayerTaps && weight.contiguous_tail(2) && aligned(weight, 2 * kUnitBytes) && type &&
           has_unit_bias(bias, projection);
}

bool has_unit_bias(const View& bias, const View& projection) {
    return !bias.defined() || (bias.dtype == projection.dtype && bias.contiguous_tail(1) && aligned(bias, kUnitBytes));
}

bool is_unit_type(const View& weight, const View& projection) {
    return weight.dtype == projection.dtype || weight.dtype == torch_numbers.f32;
}

}  // namespace gdn_cuda::layers
