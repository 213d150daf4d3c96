// Configuration and arguments of scan/selective_starts, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective/inputs.cuh>

namespace gdn_cuda::scan {

struct SelectiveStartsConfig {
    bool is_complex;

    constexpr bool operator==(const SelectiveStartsConfig&) const = default;
    static constexpr int kThreads = 128;
    static constexpr int kAtOnce = 8;  // pieces whose maps are in flight

    GDN_FIELDS(is_complex)
};

struct SelectiveStartsArgs {
    Pieces pieces;
    PieceMaps maps;
    const void* first = nullptr;  // (sequences, dim, N): before the first piece, or in reverse behind the last; null: zeros
    Tagged cu_seqlens = {};
    int sequences = 0, length = 0;
    i64 states = 0;  // of a sequence
    bool reverse = false;
};

}  // namespace gdn_cuda::scan
