// Configuration and arguments of scan/simplified_step, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

struct SimplifiedStepConfig {
    int threads;

    constexpr bool operator==(const SimplifiedStepConfig&) const = default;

    GDN_FIELDS(threads)
};

struct SimplifiedStepArgs {
    struct Steps {  // (sequence, p), fp32; no data: absent
        const float* data = nullptr;
        i64 sequence = 0, p = 0;
    };
    void* state;  // (sequence, p), complex64
    i64 state_sequence, state_p;
    const void* drive;  // B u, contiguous, complex64
    const void* A;
    i64 A_p;
    Steps delta, delta_a;
    float* halves;  // (sequence, p, 2), contiguous; a real product with C makes them outputs
    float scale;
    Discretization discretization;
    i64 sequences;
    int states;  // P
};

}  // namespace gdn_cuda::scan
