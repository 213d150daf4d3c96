// Configuration and arguments of gdn/summary, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/args.cuh>
#include <gdn_cuda/kernels/chunked/config.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

struct SummaryConfig {
    int head_k;
    DType io;

    constexpr bool operator==(const SummaryConfig&) const = default;

    GDN_FIELDS(head_k, io)

    GDN_HOST_DEVICE constexpr ChunkedConfig block() const {
        return {.head_k = head_k, .value_groups = 2, .inverse_groups = 1, .stages = 3, .io = io};
    }
    GDN_HOST_DEVICE constexpr int threads() const { return block().threads(); }
};

struct SummaryArgs {
    ChunkedArgs chunked;
    ListedSegments listed;
};

}  // namespace gdn_cuda::gdn
