// Calls through torch's dispatcher.
#pragma once

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "tensor.hpp"

namespace gdn_cuda {

// Calls torch.ops.gdn_cuda.<name>: takes arguments from the stack and leaves results on it.
inline void call_dispatcher(const char* name, StableIValue* stack) {
    if (torch_call_dispatcher((std::string("gdn_cuda::") + name).c_str(), "", stack, TORCH_ABI_VERSION) != TORCH_SUCCESS)
        throw std::runtime_error(
            std::string(name) +
            ": the call failed for tensors that are not on CUDA; they run gdn_cuda.reference, so `import gdn_cuda` "
            "in this process. torch printed the cause above");
}

inline Tensor tensor_of(StableIValue value) {
    return torch::stable::detail::to<Tensor>(value);
}

// Calls one of torch's operators that has one result.
template <class... Args>
Tensor call_torch(const char* name, const char* overload, const Args&... args) {
    std::array<StableIValue, sizeof...(Args)> stack{torch::stable::detail::from(args)...};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
    return tensor_of(stack[0]);
}

// The same for an operator with several results.
template <size_t kResults, class... Args>
std::array<Tensor, kResults> results_of_torch(const char* name, const char* overload, const Args&... args) {
    std::array<StableIValue, std::max(kResults, sizeof...(Args))> stack{torch::stable::detail::from(args)...};
    TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(name, overload, stack.data(), TORCH_ABI_VERSION));
    return [&]<size_t... kAt>(std::index_sequence<kAt...>) {
        return std::array<Tensor, kResults>{tensor_of(stack[kAt])...};
    }(std::make_index_sequence<kResults>());
}

// Materializes torch's lazy conjugate and negative flags, which our kernels do not see; on other devices torch handles them.
inline Tensor plain(const Tensor& x) {
    return call_torch("aten::resolve_neg", "", call_torch("aten::resolve_conj", "", x));
}
inline Tensor plain_on_cuda(const Tensor& x) {
    return x.is_cuda() ? plain(x) : x;
}

}  // namespace gdn_cuda
