// Configuration and arguments of scan/selective_starts, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveStartsConfig {
    bool is_complex;

    constexpr bool operator==(const SelectiveStartsConfig&) const = default;
    static constexpr int kThreads = 128;
    static constexpr int kAtOnce = 8;  // segments whose maps are in flight

    GDN_FIELDS(is_complex)
};

struct SelectiveStartsArgs {
    Segments segments;
    SegmentMaps maps;
    const void* first = nullptr;  // (sequences, dim, N): before the first segment, in reverse after the last; null: zeros
    Tagged cu_seqlens = {};
    int sequences = 0, length = 0;
    i64 states = 0;  // per sequence
    bool reverse = false;
};

}  // namespace gdn_cuda::scan
