// Configuration and arguments of scan/selective_summary, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveSummaryConfig {
    bool is_complex;

    constexpr bool operator==(const SelectiveSummaryConfig&) const = default;
    static constexpr int kThreads = 128;
    static constexpr int kAtOnce = 8;  // segments whose maps are in flight

    GDN_FIELDS(is_complex)
};

struct SelectiveSummaryArgs {
    Segments segments;
    SegmentMaps maps;  // of all segments
    const void* first =
        nullptr;  // (sequences, dim, N): the state before the sequence, in reverse the gradient of that after it
    void *state = nullptr, *decay = nullptr;  // (sequences, dim, N)
    Tagged cu_seqlens = {};
    int sequences = 0, length = 0;
    i64 states = 0;  // per sequence
    bool reverse = false;
};

}  // namespace gdn_cuda::scan
