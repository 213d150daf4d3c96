#include "new_tensor.hpp"

#include <algorithm>
#include <array>

namespace gdn_cuda {
namespace {

constexpr size_t kMostRank = 64;  // torch's

Tensor empty(NewSizes sizes, int32_t dtype, int32_t device_type, int32_t device_index) {
    std::array<int64_t, kMostRank> strides;
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides.at(d) = stride;
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                                                    device_type, device_index, &made));
    return Tensor(made);
}

}  // namespace

Tensor new_tensor(const View& like, NewSizes sizes, int32_t dtype) {
    return empty(sizes, dtype, like.device_type, like.device_index);
}

Tensor new_tensor(const Tensor& like, NewSizes sizes, std::optional<ScalarType> type) {
    int32_t dtype = 0, device_type = 0, device_index = 0;
    if (type)
        dtype = static_cast<int32_t>(*type);
    else
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
    return empty(sizes, dtype, device_type, device_index);
}

}  // namespace gdn_cuda
