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

// A summary is (dv + dk, dk), L above M, or L alone.
struct SummaryArgs {
    ChunkedArgs chunked;
    const float* state;  // before each pair's part, (dv, dk); nullptr: zeros
    float* out;
    i64 rows;  // of a summary in `out`
    float* results;
    int value_tiles;  // blocks of rows of L; those of M follow
    const int* count;
    const SummarySegment* segments;

    GDN_HOST_DEVICE constexpr i64 below() const { return static_cast<i64>(chunked.call.dv) * chunked.call.dk; }  // L, M begins
    GDN_HOST_DEVICE constexpr bool has_transition() const { return rows > chunked.call.dv; }
};

}  // namespace gdn_cuda::gdn
