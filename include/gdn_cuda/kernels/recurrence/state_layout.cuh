// How a row of the state (head_k elements) is distributed over lanes, and a token's scalars; for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

constexpr int kCodeGroup = 32;  // contiguous columns that have a scale, where states are int8 codes (state_codes.cuh)

// A lane has about 32 bytes of a row, of codes half as many: every lanes-th vector of at most 16 bytes. This alone determines
// the order in which a row is summed, so all kernels and configurations of the recurrence give the same bits, except
// gdn/recurrent_any.
struct StateLayout {
    int lanes, per_lane, vector;

    GDN_HOST_DEVICE constexpr StateLayout(int head_k, DType state) : lanes(32), per_lane(0), vector(0) {
        const int bytes = state == DType::i8 ? 2 : bytes_of(state);  // codes: the lanes of 16-bit states
        while (lanes * 32 > head_k * bytes || head_k * bytes % (lanes * 16) != 0) lanes /= 2;
        per_lane = head_k / lanes;
        vector = state != DType::i8 ? 16 / bytes : per_lane % 16 == 0 ? 16 : 8;
    }
    GDN_HOST_DEVICE constexpr int vectors() const { return per_lane / vector; }
};

// The scalars of one token and head. l2 norms are factors here; queries and keys are not rewritten.
struct alignas(16) TokenScalars {
    float decay, beta, key_scale, query_scale, query_key;
};

}  // namespace gdn_cuda::gdn
