// Arguments of scan/selective_step_codes, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/code_step_plan.cuh>
#include <gdn_cuda/kernels/scan/selective_step/plan.cuh>

namespace gdn_cuda::scan {

using gdn::CodeStepConfig;
template <CodeStepConfig kConfig>
using CodeStepSharedPlan = gdn::CodeStepSharedPlan<kConfig>;

struct SelectiveCodesArgs : gdn::CodeStepUnits {
    // (sequence, head, channel), or a group's columns, contiguous; strides in elements
    struct Heads {
        void* data = nullptr;
        i64 sequence = 0, head = 0;
    };
    struct PerHead {  // strides in bytes
        Tagged values;
        i64 sequence = 0, head = 0;
    };
    struct Step {
        Heads query, key, value, output;  // C, B, x, y
        Tagged slots;                     // (sequences,); if absent, sequence n has slot n
        i64 slots_sequence;
        i64 slot_count, null_slot;
        int dv;  // channels of a head
        const void* state_in;
        void* state_out;
        i64 state_in_slot, state_out_slot;
        float *scales_in, *scales_out;
        i64 scales_in_slot, scales_out_slot;
        float scale = 1.f;
        bool qk_norm = false;
    } step;
    Heads z;                 // may be absent
    PerHead delta, bias, D;  // bias and D may be absent
    const float* A;
    i64 A_head;  // stride in elements
    bool softplus, is_dirac;
};

}  // namespace gdn_cuda::scan
