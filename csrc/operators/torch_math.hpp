// C++ wrappers of torch operators that the stable ABI's ops.h lacks, called through its dispatcher. A torch Scalar cannot cross
// that ABI, so scalars are 0-dimensional CPU tensors, which torch treats like Scalars: nothing is copied to the other operand's
// device, and nothing synchronizes.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <string>
#include <vector>

#include "dispatch.hpp"

namespace gdn_cuda::math {

inline Tensor number(double value, ScalarType type = ScalarType::Double) {
    return torch::stable::full({}, value, type, std::nullopt, torch::stable::Device(torch::headeronly::DeviceType::CPU));
}
// 1 to n, in fp64.
inline Tensor counts(int64_t n, const Tensor& like) {
    const std::vector<int64_t> shape{n};
    const Tensor ones = torch::stable::full(shape, 1.0, ScalarType::Double, std::nullopt, like.device());
    return call_torch("aten::cumsum", "", ones, int64_t{-1}, std::optional<ScalarType>());
}

// ---- Unary

inline Tensor abs(const Tensor& x) {
    return call_torch("aten::abs", "", x);
}
inline Tensor sqrt(const Tensor& x) {
    return call_torch("aten::sqrt", "", x);
}
inline Tensor exp2(const Tensor& x) {
    return call_torch("aten::exp2", "", x);
}
inline Tensor neg(const Tensor& x) {
    return call_torch("aten::neg", "", x);
}
inline Tensor real(const Tensor& x) {
    return call_torch("aten::real", "", x);
}
inline Tensor isfinite(const Tensor& x) {
    return call_torch("aten::isfinite", "", x);
}
inline Tensor logical_not(const Tensor& x) {
    return call_torch("aten::logical_not", "", x);
}
inline Tensor all(const Tensor& x) {
    return call_torch("aten::all", "", x);
}
inline Tensor cumsum(const Tensor& x, int64_t dim) {
    return call_torch("aten::cumsum", "", x, dim, std::optional<ScalarType>());
}
inline Tensor argmax(const Tensor& x, int64_t dim) {
    return call_torch("aten::argmax", "", x, std::optional<int64_t>(dim), false);
}
inline Tensor amax(const Tensor& x, const std::vector<int64_t>& dims, bool keep = false) {
    return call_torch("aten::amax", "", x, dims, keep);
}
inline Tensor amin(const Tensor& x, const std::vector<int64_t>& dims, bool keep = false) {
    return call_torch("aten::amin", "", x, dims, keep);
}
inline Tensor sum(const Tensor& x, int64_t dim, bool keep = false) {
    return torch::stable::sum(x, torch::headeronly::IntHeaderOnlyArrayRef(&dim, 1), keep);
}
// The exponents from frexp.
inline Tensor exponents(const Tensor& x) {
    return results_of_torch<2>("aten::frexp", "Tensor", x)[1];
}
// e^{i angle}
inline Tensor turns(const Tensor& angle) {
    return call_torch("aten::complex", "", call_torch("aten::cos", "", angle), call_torch("aten::sin", "", angle));
}

// ---- Binary

inline Tensor add(const Tensor& x, const Tensor& y) {
    return torch::stable::subtract(x, y, -1.0);
}
inline Tensor mul(const Tensor& x, const Tensor& y) {
    return call_torch("aten::mul", "Tensor", x, y);
}
inline Tensor div(const Tensor& x, const Tensor& y) {
    return call_torch("aten::div", "Tensor", x, y);
}
inline Tensor maximum(const Tensor& x, const Tensor& y) {
    return call_torch("aten::maximum", "", x, y);
}
inline Tensor minimum(const Tensor& x, const Tensor& y) {
    return call_torch("aten::minimum", "", x, y);
}
inline Tensor less_equal(const Tensor& x, const Tensor& y) {
    return call_torch("aten::le", "Tensor", x, y);
}
inline Tensor greater(const Tensor& x, const Tensor& y) {
    return call_torch("aten::gt", "Tensor", x, y);
}
inline Tensor less(const Tensor& x, const Tensor& y) {
    return call_torch("aten::lt", "Tensor", x, y);
}
inline Tensor both(const Tensor& x, const Tensor& y) {
    return call_torch("aten::logical_and", "", x, y);
}
inline Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y) {
    return call_torch("aten::where", "self", condition, x, y);
}
inline Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
    if (explaining()) return x;  // torch's for meta tensors refuses a `value` on the CPU
    return call_torch("aten::masked_fill", "Tensor", x, mask, value);
}

// ---- Shapes

inline Tensor narrow(const Tensor& x, int64_t dim, int64_t first, int64_t length) {
    AtenTensorHandle result = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_aten_narrow(x.get(), dim, first, length, &result));
    return Tensor(result);
}
inline Tensor without_first(const Tensor& x) {  // along the last dimension
    return narrow(x, -1, 1, x.size(-1) - 1);
}
inline Tensor cat(const std::vector<Tensor>& parts, int64_t dim) {
    return call_torch("aten::cat", "", parts, dim);
}
inline Tensor flip(const Tensor& x) {  // along the last dimension
    return call_torch("aten::flip", "", x, std::vector<int64_t>{-1});
}
inline Tensor expand(const Tensor& x, const std::vector<int64_t>& shape) {
    return call_torch("aten::expand", "", x, shape, false);
}
inline Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape) {
    return torch::stable::reshape(x, shape);
}
inline Tensor transposed(const Tensor& x) {  // of the last two dimensions
    return torch::stable::transpose(x, -2, -1);
}
inline Tensor converted(const Tensor& x, ScalarType type) {
    return x.scalar_type() == type ? x : torch::stable::to(x, type);
}
inline Tensor zeros(const Tensor& like, const std::vector<int64_t>& shape) {
    return torch::stable::new_zeros(like, shape);
}

// ---- Transforms. `length`: x is cropped or padded to it; for an inverse real transform, the length of the result.

enum class Scaled { inverse_only, both };  // the inverse by 1 / n; both by 1 / √n
inline Tensor transform(const char* name, const Tensor& x, std::optional<int64_t> length = {}, int64_t dim = -1,
                        Scaled scaled = Scaled::inverse_only) {
    const auto norm = scaled == Scaled::both ? std::optional<std::string>("ortho") : std::nullopt;
    return call_torch(name, "", x, length, dim, norm);
}

}  // namespace gdn_cuda::math
