// From a KernelSource to something that can be launched: prebuilt directory, disk cache, compiler, driver; each key once a
// process.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

#include "compiler.hpp"
#include "device.hpp"
#include "source.hpp"

namespace gdn_cuda::jit {

// Names of what a compile depends on. `code` needs no toolchain (the source, the headers of ours that it includes, arch, flags)
// and names prebuilt entries; `full` adds the exact compiler and the external headers and names cache entries; an Error when
// there is no compiler.
std::string code_key(const KernelSource& source, const std::string& arch);
std::string full_key(const KernelSource& source, const std::string& arch);

enum class Origin { memory, prebuilt, disk, compiled };
const char* to_string(Origin origin);

struct Obtained {
    Cubin cubin;
    Origin origin = Origin::memory;
    double seconds = 0;
    Resources resources;  // only when compiled
};

// Finds or compiles; needs no GPU. `force` compiles even when there is an entry.
Obtained obtain(const KernelSource& source, const std::string& arch, bool force = false);
// Compiles if need be and writes the sealed entry, named by code_key, into `directory`.
Obtained export_prebuilt(const KernelSource& source, const std::string& arch, const std::string& directory, bool force = false);

// A kernel in the driver. Context-free, so one handle serves every device of its arch.
struct LoadedKernel {
    CUkernel handle = nullptr;
    std::string id;
};

struct LoadEvent {  // what the demo, doctor and tests read back
    std::string kernel, configuration, arch, origin;
    double seconds;
};
std::vector<LoadEvent> load_events();

// Cold path: throws when `stream` is capturing, before anything is loaded. `shared_bytes` above 48 KB is opted into for
// `ordinal`.
LoadedKernel load(const KernelSource& source, int ordinal, CUstream stream, int shared_bytes);

struct LaunchShape {
    unsigned grid[3] = {1, 1, 1};
    unsigned threads = 1;
    unsigned shared_bytes = 0;
    unsigned cluster = 1;      // blocks, along x
    bool early_start = false;  // programmatic dependent launch: may begin before the kernel ahead of it in the stream has ended
};

// One by-value argument struct. Throws before the driver is called for an empty grid, a fork since the driver was first used,
// or a bad size.
void launch(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal, CUstream stream, const void* arguments);

// How many clusters of this shape the device can run at once, 0 where it has none of this size. Before their first launch: it
// opts into sizes that not every GPU has.
int most_clusters(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal);

bool any_kernel_loaded();

}  // namespace gdn_cuda::jit
