#include "explanation.hpp"

#include <utility>

namespace gdn_cuda {
namespace {

thread_local Explanation* current = nullptr;

}  // namespace

Explanation::Explanation(const jit::DeviceTraits& device) : device_(device), outer_(std::exchange(current, this)) {}
Explanation::~Explanation() {
    current = outer_;
}

bool explaining() {
    return current != nullptr;
}

void explain_launch(const jit::KernelSource& source, const jit::LaunchShape& shape, const jit::DeviceTraits& device,
                    std::string reason) {
    jit::require_shared_memory(source, static_cast<int>(shape.shared_bytes), device);
    current->steps.push_back({source.id(), source.configuration, std::move(reason), shape});
}

void remark(std::string text) {
    current->steps.push_back({{}, {}, std::move(text), {}});
}

}  // namespace gdn_cuda
