// gdn_cuda::NoCompile as torch operators, so that Python can create and destroy one.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>
#include <optional>

namespace {

std::optional<gdn_cuda::NoCompile> held;

void enter_no_compile() {
    held.emplace();
}

void leave_no_compile() {
    held.reset();
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("enter_no_compile() -> ()");
    m.def("leave_no_compile() -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("enter_no_compile", TORCH_BOX(&enter_no_compile));
    m.impl("leave_no_compile", TORCH_BOX(&leave_no_compile));
}
