// How many chunks of every head chunked_forward prepares at a time, where every channel of the key has a gate.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/gdn/kda/record.cuh>

namespace gdn_cuda::gdn {

// For all heads together: 840 MB. 64 heads of 8192 packed tokens are one window with up to 32 sequences, each of which may have
// a chunk more than its tokens fill.
inline constexpr i64 kKdaMostRecords = 10240;

// On an H200 (benchmarks/kda_windows.py, 7e071307) the launches of a window have some 10 us that do not depend on its chunks:
// more than it costs to take records through memory. So all chunks are one window, if memory for the records is to be had;
// otherwise windows are of one size, as a short one costs as much as a long one and takes all states through memory.
inline int kda_window(i64 positions, i64 heads) {
    const i64 most = std::max<i64>(kKdaMostRecords / std::max<i64>(heads, 1), 1);
    const i64 windows = std::max<i64>((positions + most - 1) / most, 1);
    return static_cast<int>(std::max<i64>((positions + windows - 1) / windows, 1));
}

}  // namespace gdn_cuda::gdn
