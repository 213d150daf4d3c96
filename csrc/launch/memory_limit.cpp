#include "memory_limit.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "explanation.hpp"

namespace gdn_cuda {
namespace {

int64_t host_bytes() {
    int64_t bytes = kMostGpuBytes;
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) bytes = pages * page;
    // The files of control groups, versions 2 and 1. Without a limit they read "max", which does not parse as an integer.
    for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"})
        if (int64_t limit = 0; std::ifstream(path) >> limit && limit > 0) bytes = std::min(bytes, limit);
    return bytes;
}

}  // namespace

int64_t most_result_bytes(bool on_gpu) {
    static const int64_t host = host_bytes();
    return on_gpu || explaining() ? kMostGpuBytes : host;
}

}  // namespace gdn_cuda
