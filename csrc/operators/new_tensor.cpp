#include "new_tensor.hpp"

#include <algorithm>
#include <array>
#include <atomic>

namespace gdn_cuda {
namespace {

constexpr size_t kMostRank = 64;  // torch's

AtenTensorHandle allocated(NewSizes sizes, const int64_t* strides, int32_t dtype, int32_t device_type, int32_t device_index) {
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides, dtype,
                                                    device_type, device_index, &made));
    return made;
}

// Tensors without elements on GPUs, of which others are views: a result that the caller did not ask for costs no allocation.
// Several of each, so that the results of one call share no storage; made once, and never destroyed.
constexpr size_t kTypes = 48, kDevices = 16, kOfEach = 4;
std::atomic<AtenTensorHandle> nothing[kTypes][kDevices][kOfEach];

AtenTensorHandle kept_nothing(int32_t dtype, int32_t device_type, int32_t device_index) {
    thread_local size_t next = 0;
    std::atomic<AtenTensorHandle>& kept =
        nothing[static_cast<size_t>(dtype)][static_cast<size_t>(device_index)][next++ % kOfEach];
    if (const AtenTensorHandle known = kept.load(std::memory_order_acquire)) return known;
    constexpr std::array<int64_t, 1> none = {0}, stride = {1};
    const AtenTensorHandle made = allocated({none.data(), 1}, stride.data(), dtype, device_type, device_index);
    AtenTensorHandle first = nullptr;
    if (kept.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return made;
    aoti_torch_delete_tensor_object(made);
    return first;
}

Tensor empty(NewSizes sizes, int32_t dtype, int32_t device_type, int32_t device_index) {
    std::array<int64_t, kMostRank> strides;
    int64_t stride = 1;
    for (size_t d = sizes.size(); d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides.at(d) = stride;
    const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
    if (!is_empty || device_type != aoti_torch_device_type_cuda() || static_cast<size_t>(dtype) >= kTypes ||
        static_cast<size_t>(device_index) >= kDevices)
        return Tensor(allocated(sizes, strides.data(), dtype, device_type, device_index));
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(kept_nothing(dtype, device_type, device_index),
                                                          static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), 0,
                                                          &made));
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
