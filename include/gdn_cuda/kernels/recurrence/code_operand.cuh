// The right operand of products with int8 states (code_products.cuh), for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

// A key and a query, in planes of 8 bits.
template <int kHeadK>
struct CodeOperand {
    static constexpr int kPlanes = 7, kZeroPlane = 3;  // 0 to 2: the key's, 4 to 6: the query's
    static constexpr int kPitch = kHeadK + 64;         // two planes have a column in different banks

    alignas(16) signed char planes[kPlanes][kPitch];
    // For each group: [0] the weight of plane 0, and of plane 1 times 2^-8; [1] of plane 2; [2] and [3] the same for the query.
    alignas(16) float weights[4][kHeadK / kCodeGroup];
};

}  // namespace gdn_cuda::gdn
