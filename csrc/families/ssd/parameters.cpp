#include "parameters.hpp"

namespace gdn_cuda::ssd {
namespace {

// A, D and dt_bias: fp64 beside x in fp64, which no kernel takes.
void check_parameter(const Checks& check, const char* argument, const View& view, const View& x) {
    if (dtype_of(x) == DType::f64)
        check.dtype(argument, view, {DType::f64});
    else
        check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
    check.device(argument, view, x, "x");
}

}  // namespace

PerHead per_head(const Checks& check, const char* argument, const View& view, const View& x, int64_t heads) {
    if (!view.defined()) return {};
    check.shape(argument, view, {heads}, "(H,)");
    check_parameter(check, argument, view, x);
    return {.values = tagged(view), .head = view.stride(0)};
}
PerHead per_channel(const Checks& check, const char* argument, const View& view, const View& x, int64_t heads,
                    int64_t channels) {
    if (!view.defined() || view.rank != 2) return per_head(check, argument, view, x, heads);
    check.shape(argument, view, {heads, channels}, "(H,) or (H, P)");
    check_parameter(check, argument, view, x);
    return {.values = tagged(view), .head = view.stride(0), .channel = view.stride(1)};
}
void check_limits(const Checks& check, double lowest, double highest) {
    GDN_REQUIRE(check, lowest <= highest, "dt_limit", "a lower bound that is not above the upper one",
                fmt::format("({}, {})", lowest, highest));
}

}  // namespace gdn_cuda::ssd
