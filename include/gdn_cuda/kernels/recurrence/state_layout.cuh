// How a row of the state (head_k elements) is split over lanes, and a head's scalars of a token; for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// About 32 bytes per lane, in vectors of at most 16 bytes dealt to the lanes in turn. This alone fixes the summation order, so
// every kernel and configuration of the recurrence gives the same bits, but for gdn/recurrent_any.
struct StateLayout {
    int lanes, per_lane, vector;

    GDN_HOST_DEVICE constexpr StateLayout(int head_k, DType state) : lanes(32), per_lane(0), vector(0) {
        while (lanes * 32 > head_k * bytes_of(state) || head_k * bytes_of(state) % (lanes * 16) != 0) lanes /= 2;
        per_lane = head_k / lanes;
        vector = 16 / bytes_of(state);
    }
    GDN_HOST_DEVICE constexpr int vectors() const { return per_lane / vector; }
};

// A head's scalars for one token; the l2 norms scale these instead of vectors.
struct alignas(16) TokenScalars {
    float decay, beta, key_scale, query_scale, query_key;
};

}  // namespace gdn_cuda::gdn
