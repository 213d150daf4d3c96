// Whether buffers of a function that is composed of operators share memory: each operator sees its own arguments only.
#include <torch/csrc/stable/library.h>

#include <vector>

#include "tensor.hpp"

namespace gdn_cuda {
namespace {

using torch::stable::detail::from;
using torch::stable::detail::to;

// The first pair (i, j) that shares a byte as i * (all tensors) + j, or -1; i < j, `written` before `read`, i is written.
int64_t first_overlap(const std::vector<Tensor>& written, const std::vector<Tensor>& read) {
    std::vector<Memory> all;
    all.reserve(written.size() + read.size());
    for (const auto* tensors : {&written, &read})
        for (const Tensor& tensor : *tensors) all.emplace_back("", View(tensor));
    for (size_t i = 0; i < written.size(); ++i)
        for (size_t j = i + 1; j < all.size(); ++j)
            if (share_memory(all[i], all[j])) return static_cast<int64_t>(i * all.size() + j);
    return -1;
}

void first_overlap_boxed(StableIValue* stack, uint64_t, uint64_t) {
    const auto written = to<std::vector<Tensor>>(stack[0]), read = to<std::vector<Tensor>>(stack[1]);
    stack[0] = from(first_overlap(written, read));
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    m.def("first_overlap(Tensor[] written, Tensor[] read) -> int");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CompositeExplicitAutograd, m) {
    m.impl("first_overlap", &first_overlap_boxed);
}

}  // namespace
}  // namespace gdn_cuda
