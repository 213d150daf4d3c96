// The two layouts of (B, D, L) tensors: contiguous, and the transposed view of a contiguous (B, L, D) one.
#pragma once

#include <algorithm>
#include <array>

#include "new_tensor.hpp"
#include "tensor.hpp"

namespace gdn_cuda {

// Which dimension is contiguous in memory. A kernel takes one layout.
enum class Layout : int { tokens, channels };

// The same decision as in gdn_cuda/operators/layout.py. The channels of a contiguous tensor of one token count as contiguous.
inline Layout layout_of(const View& rows) {
    return rows.strides[1] == 1 && !(rows.size(2) > 1 && rows.strides[2] == 1) ? Layout::channels : Layout::tokens;
}

// A dense tensor of the same size. It is not a view, because autograd would not let a caller change a view in place.
inline Tensor empty_rows(const Tensor& like, Layout layout) {
    const View view(like);
    const int64_t B = view.size(0), D = view.size(1), L = view.size(2);
    if (layout == Layout::tokens) return new_tensor(like, {B, D, L});
    const int64_t row = std::max<int64_t>(D, 1);
    const std::array sizes{B, D, L}, strides{std::max<int64_t>(L, 1) * row, int64_t{1}, row};
    AtenTensorHandle result = nullptr;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(3, sizes.data(), strides.data(), view.dtype, view.device_type, view.device_index, &result));
    return Tensor(result);
}

}  // namespace gdn_cuda
