// How many chunks of every head chunked_forward prepares at a time, where every channel of the key has a gate.
#pragma once

#include <algorithm>
#include <cstddef>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>

namespace gdn_cuda::gdn {

// What a record of a chunk without residuals moves is in L2 between both launches.
inline constexpr i64 kKdaBytesInL2 = offsetof(KdaRecord, update_residual) + sizeof(KdaFactors),
                     kKdaMostBytesInL2 = i64{24} << 20;  // of the 50 MB of an H100 or H200
inline constexpr i64 kKdaPreparersPerMultiprocessor = 2;

// As many as L2 holds, in waves of blocks that are as full as they can be. positions: chunks of a head.
inline int kda_window(i64 positions, int heads, int multiprocessors) {
    const i64 most = std::clamp<i64>(kKdaMostBytesInL2 / (kKdaBytesInL2 * std::max(heads, 1)), 1, std::max<i64>(positions, 1)),
              at_once = kKdaPreparersPerMultiprocessor * multiprocessors;
    const auto fill = [&](i64 window) {
        const i64 blocks = window * heads;
        return static_cast<double>(blocks) / static_cast<double>(ceil_div(blocks, at_once) * at_once);
    };
    i64 best = most;  // of equally full ones the longest
    for (i64 window = most - 1; window > most / 2; --window)
        if (fill(window) > fill(best)) best = window;
    return static_cast<int>(best);
}

}  // namespace gdn_cuda::gdn
