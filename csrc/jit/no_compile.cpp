#include "no_compile.hpp"

#include <atomic>

namespace gdn_cuda::jit {
namespace {

std::atomic<int> open_sections{0};

}  // namespace

void enter_no_compile() {
    ++open_sections;
}

void leave_no_compile() {
    --open_sections;
}

bool compiling_is_refused() {
    return open_sections.load() > 0;
}

}  // namespace gdn_cuda::jit
