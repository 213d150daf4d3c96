// Explained calls: the operators themselves run, on tensors of torch's meta device, which have shapes and no memory; launches
// are recorded instead of made. So an explanation cannot differ from a call: the same code chooses from the same problem.
#pragma once

#include <string>
#include <vector>

#include "../jit/device.hpp"
#include "../jit/runtime.hpp"

namespace gdn_cuda {

// A launch, or, if it has no kernel, a remark on the launches that follow.
struct ExplainedStep {
    std::string kernel, configuration;
    std::string reason;
    jit::LaunchShape shape;
};

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
// While it lives, this thread's calls with meta tensors are explained as calls on `device`.
class Explanation {
  public:
    explicit Explanation(const jit::DeviceTraits& device);
    ~Explanation();
    Explanation(const Explanation&) = delete;
    Explanation& operator=(const Explanation&) = delete;

    std::vector<ExplainedStep> steps;

  private:
    jit::StandIn device_;
    Explanation* outer_;
};
#pragma GCC visibility pop

bool explaining();  // in this thread

// Both expect explaining(). A launch that `device` would refuse throws here as it does there.
void explain_launch(const jit::KernelSource& source, const jit::LaunchShape& shape, const jit::DeviceTraits& device,
                    std::string reason);
void remark(std::string text);

}  // namespace gdn_cuda
