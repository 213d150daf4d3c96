// Which gradients the backward of gated_delta_rule computes.
#pragma once

namespace gdn_cuda::gdn {

enum class WantedGradients { all, value_and_state, state };

}  // namespace gdn_cuda::gdn
