// Calls through torch's dispatcher, for the C++ API.
#pragma once

#include <torch/csrc/stable/library.h>

#include <array>
#include <stdexcept>
#include <string>

#include "tensor.hpp"

namespace gdn_cuda {

// Calls torch.ops.gdn_cuda.<name>; `results` outputs come back at the front of the stack.
template <size_t kResults, class... Args>
std::array<StableIValue, kResults> dispatch(const char* name, const Args&... args) {
    std::array<StableIValue, std::max(kResults, sizeof...(Args))> stack{torch::stable::detail::from(args)...};
    if (torch_call_dispatcher(name, "", stack.data(), TORCH_ABI_VERSION) != TORCH_SUCCESS)
        throw std::runtime_error(
            std::string(name) +
            ": the call failed for tensors that are not on CUDA; they run gdn_cuda.reference, so `import gdn_cuda` "
            "in this process. torch printed the cause above");
    std::array<StableIValue, kResults> results{};
    std::copy_n(stack.begin(), kResults, results.begin());
    return results;
}

inline Tensor tensor_of(StableIValue value) {
    return torch::stable::detail::to<Tensor>(value);
}

// One of torch's own operators with one result.
template <class... Args>
Tensor of_torch(const char* name, const char* overload, const Args&... args) {
    std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
    return tensor_of(stack[0]);
}

// Torch only marks a tensor as conjugate or negative, which no kernel of ours would see.
inline Tensor plain(const Tensor& x) {
    return of_torch("aten::resolve_neg", "", of_torch("aten::resolve_conj", "", x));
}

}  // namespace gdn_cuda
