// What the sigmoid of a logit of beta is multiplied by, from the options of gates (include/gdn_cuda/options.hpp).
#pragma once

namespace gdn_cuda {

constexpr float beta_factor(const auto& gates) {
    return gates.allow_negative_eigenvalues ? 2.f : 1.f;
}

}  // namespace gdn_cuda
