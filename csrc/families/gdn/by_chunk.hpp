// A call as the kernels of the chunked form take it, and which of them does.
#pragma once

#include "../chunked/launch.hpp"
#include "prefill_kernel.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {

PrefillTensors tensors_of(const Prepared& prepared);  // without workspace

struct KernelChoice {
    PrefillKernel kernel;
    std::string why;  // if the call is explained
};
KernelChoice choose_kernel(const Prepared& prepared, const PrefillTensors& tensors, const Target& target);

}  // namespace gdn_cuda::gdn
