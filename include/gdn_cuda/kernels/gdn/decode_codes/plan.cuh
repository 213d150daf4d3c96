// Arguments of gdn/decode_codes, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/decode_plan.cuh>
#include <gdn_cuda/kernels/recurrence/code_step_plan.cuh>

namespace gdn_cuda::gdn {

struct DecodeCodesArgs : CodeStepUnits {
    DecodeArgs step;
};

}  // namespace gdn_cuda::gdn
