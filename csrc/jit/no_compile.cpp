#include "no_compile.hpp"

#include <atomic>

namespace gdn_cuda::jit {
namespace {

std::atomic<int> sections{0};

}  // namespace

void enter_no_compile() {
    ++sections;
}

void leave_no_compile() {
    --sections;
}

bool compiling_is_refused() {
    return sections.load() > 0;
}

}  // namespace gdn_cuda::jit
