// Configuration, shared memory and arguments of gdn/mn_major, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct MnMajorConfig {
    int element_bytes;  // 2 or 4: elements are copied as bits
    int tile;           // rows and columns that a block transposes at a time
    int threads;

    constexpr bool operator==(const MnMajorConfig&) const = default;

    GDN_FIELDS(element_bytes, tile, threads)
};

template <MnMajorConfig kConfig>
struct MnMajorSharedPlan {
    unsigned tile[kConfig.tile][kConfig.tile + 1];  // + 1: column reads are free of bank conflicts
};

struct MnMajorArgs {
    static constexpr int kMaxLeading = 4;
    const void* input;
    void* output;      // (leading..., columns, padded_rows), contiguous
    int leading_dims;  // dimensions before the last two, of any strides
    i64 leading_size[kMaxLeading], leading_stride[kMaxLeading];
    i64 rows, columns, padded_rows, row_stride, column_stride;
};

}  // namespace gdn_cuda::gdn
