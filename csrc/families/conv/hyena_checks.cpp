#include "hyena_checks.hpp"

namespace gdn_cuda::conv {

HyenaTensor hyena_tensor(const View& x) {
    return {x.data, x.stride(0), x.stride(1), x.stride(2)};
}

bool has_vectors(const View& x, Layout layout) {
    const bool by_tokens = layout == Layout::tokens;
    const int64_t inner = x.stride(by_tokens ? 2 : 1), outer = x.stride(by_tokens ? 1 : 2);
    const auto is_whole = [&](int64_t elements) { return elements * bytes_of(dtype_of(x).value_or(DType::f64)) % 16 == 0; };
    return inner == 1 && is_whole(x.stride(0)) && is_whole(outer) && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0;
}

HyenaGiven check_hyena(const Checks& check, const Tensor& x1, const Tensor& x2, const Tensor& v) {
    HyenaGiven given{.x1 = View(x1), .x2 = View(x2), .v = View(v)};
    check.rank("x1", given.x1, 3, "(B, D, L)");
    given.io = check.number("x1", given.x1);
    given.wide = given.io == DType::f64 ? DType::f64 : DType::f32;
    for (const auto& [name, view] : {std::pair{"x2", &given.x2}, std::pair{"v", &given.v}}) {
        check.shape(name, *view, {given.x1.size(0), given.x1.size(1), given.x1.size(2)}, "(B, D, L)");
        check.dtype(name, *view, {given.io});
        check.device(name, *view, given.x1, "x1");
    }
    check.count("x1", "sequences", given.x1.size(0));
    check.count("x1", "channels", given.x1.size(1));
    check.count("x1", "tokens", given.x1.size(2), kHyenaMostTokens);
    given.layout = layout_of(given.x1);
    return given;
}

int check_groups(const Checks& check, const char* argument, const View& parameters, int64_t channels) {
    const int64_t groups = parameters.size(0);
    GDN_REQUIRE(check, groups >= 1 ? channels % groups == 0 : channels == 0, argument,
                fmt::format("a number of groups that divides the {} channels", channels), shape_text(parameters));
    return groups >= 1 ? std::max(1, static_cast<int>(channels / groups)) : 1;
}

HyenaFilter check_filter(const Checks& check, const HyenaGiven& given, const View& weight, const View& bias, int most_taps) {
    const int64_t channels = given.x1.size(1);
    check.rank("weight", weight, 3, "(groups, 1, K)");
    check.dtype("weight", weight, {given.io, given.wide});
    check.device("weight", weight, given.x1, "x1");
    const int64_t groups = weight.size(0), taps = weight.size(2);
    check.shape("weight", weight, {groups, 1, taps}, "(groups, 1, K)");
    const int channels_a_group = check_groups(check, "weight", weight, channels);
    GDN_REQUIRE(check, taps >= 1 && taps <= most_taps, "weight", fmt::format("1 to {} taps", most_taps), shape_text(weight));
    HyenaFilter filter{.weight = tagged(weight), .group = weight.stride(0), .tap = weight.stride(2)};
    filter.taps = static_cast<int>(taps);
    filter.channels_a_group = channels_a_group;
    if (bias.defined()) {
        check.shape("bias", bias, {channels}, "(D,)");
        check.dtype("bias", bias, {given.io, given.wide});
        check.device("bias", bias, given.x1, "x1");
        filter.bias = tagged(bias);
        filter.bias_channel = bias.stride(0);
    }
    return filter;
}

HyenaMask check_mask(const Checks& check, const HyenaGiven& given, const View& mask) {
    if (!mask.defined()) return {};
    static const int32_t bool_type = aoti_torch_dtype_bool();
    check.shape("padding_mask", mask, {given.x1.size(0), given.x1.size(2)}, "(B, L)");
    check.device("padding_mask", mask, given.x1, "x1");
    HyenaMask result{.batch = mask.stride(0), .token = mask.stride(1)};
    result.is_bool = mask.dtype == bool_type;
    if (!result.is_bool) check.dtype("padding_mask", mask, {given.io, given.wide, DType::i32, DType::i64});
    result.values = {mask.data, result.is_bool ? DType::f32 : *dtype_of(mask)};
    return result;
}

HyenaInitial check_initial(const Checks& check, const HyenaGiven& given, const View& initial, int64_t length,
                           const char* layout) {
    if (!initial.defined()) return {};
    check.shape("initial_state", initial, {given.x1.size(0), given.x1.size(1), length}, layout);
    check.dtype("initial_state", initial, {given.io, given.wide});
    check.device("initial_state", initial, given.x1, "x1");
    return {tagged(initial), initial.stride(0), initial.stride(1), initial.stride(2)};
}

HyenaInitial check_gradients(const Checks& check, const HyenaGiven& given, const View& grad, const View& grad_state,
                             int64_t length, const char* layout) {
    const int64_t B = given.x1.size(0), D = given.x1.size(1);
    check.shape("grad", grad, {B, D, given.x1.size(2)}, "(B, D, L)");
    check.dtype("grad", grad, {given.io});
    check.device("grad", grad, given.x1, "x1");
    check.shape("grad_state", grad_state, {B, D, length}, layout);
    check.dtype("grad_state", grad_state, {given.wide});
    check.device("grad_state", grad_state, given.x1, "x1");
    return {tagged(grad_state), grad_state.stride(0), grad_state.stride(1), grad_state.stride(2)};
}

Tensor empty_gradient(const HyenaGiven& given, const Tensor& x1, HyenaTensor& to, bool& vectors) {
    const Tensor gradient = empty_rows(x1, given.layout);
    const View view(gradient);
    to = hyena_tensor(view);
    vectors = vectors && has_vectors(view, given.layout);
    return gradient;
}

}  // namespace gdn_cuda::conv
