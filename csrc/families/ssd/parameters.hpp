// Checks of what Mamba-2's operators take for each head: A, D, dt_bias, and the limits of δ.
#pragma once

#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

#include "../../operators/tensor.hpp"

namespace gdn_cuda::ssd {

// (H,); an undefined view is absent.
PerHead per_head(const Checks& check, const char* argument, const View& view, const View& x, int64_t heads);
// (H,) or (H, P).
PerHead per_channel(const Checks& check, const char* argument, const View& view, const View& x, int64_t heads,
                    int64_t channels);
void check_limits(const Checks& check, double lowest, double highest);

}  // namespace gdn_cuda::ssd
