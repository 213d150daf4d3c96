// Configuration, shared memory and arguments of gdn/prefill_chain, for host and device, and what it shares with gdn/prefill.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// What a segment makes of the state S before it: S M + L. All arrays are (sequence, head, segment but the last, ...).
struct PrefillSummaries {
    float* states;     // L (dv, dk), then the state after the segment
    float* transfers;  // M (dk, dk)
    int* links;
    int count;  // of a head; 0: there are none, and segments that need a state begin with the sequence
};
enum PrefillLink : int {
    kUnused,     // no segment begins with the state after this one
    kStarts,     // L is that state: nothing before the segment matters, or the sequence begins with it
    kContinues,  // that state is S M + L
};

struct PrefillChainConfig {
    int head_k;  // room for dk, a column a thread
    int rows;    // of a state, a block

    constexpr bool operator==(const PrefillChainConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("rows", rows);
    }
};

template <PrefillChainConfig kConfig>
struct PrefillChainSharedPlan {
    alignas(16) float transfers[2][kConfig.head_k * kConfig.head_k];  // one ahead
    alignas(16) float state[kConfig.rows][kConfig.head_k];
};

struct PrefillChainArgs {
    PrefillSummaries summaries;
    int heads, dk, dv;
};

}  // namespace gdn_cuda::gdn
