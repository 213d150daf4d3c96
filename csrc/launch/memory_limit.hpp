// The most memory that a single result may take: what the machine has. Lengths that are integer arguments are checked against
// it, because Linux grants memory that it does not have, and kills the process that writes to it.
#pragma once

#include <cstdint>

namespace gdn_cuda {

inline constexpr int64_t kMostGpuBytes = int64_t{1} << 40;  // more than any GPU has

#pragma GCC visibility push(default)  // gdn_cuda._C calls it
// In bytes. `on_gpu`: for a result on a GPU, as all results of explained calls count. Otherwise the machine's memory, or the
// part of it that the process's control group may use.
int64_t most_result_bytes(bool on_gpu);
#pragma GCC visibility pop

}  // namespace gdn_cuda
