// From a KernelSource to a loaded kernel: prebuilt folder, disk cache, compiler, driver; once per key and process.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>
#include <vector>

#include "compiler.hpp"
#include "device.hpp"
#include "source.hpp"

namespace gdn_cuda::jit {

// Two keys. code_key names prebuilt entries and needs no toolchain: it covers the source, our headers that it includes, arch
// and flags. full_key names cache entries and adds the exact compiler and the external headers; throws an Error if there is no
// compiler.
std::string code_key(const KernelSource& source, const std::string& arch);
std::string full_key(const KernelSource& source, const std::string& arch);

enum class Origin { memory, prebuilt, disk, compiled };
const char* to_string(Origin origin);

struct Obtained {
    Cubin cubin;
    Origin origin = Origin::memory;
    double seconds = 0;
    Resources resources;  // only if compiled
};

// Finds the cubin or compiles it; needs no GPU. `force` compiles even if there is an entry.
Obtained obtain(const KernelSource& source, const std::string& arch, bool force = false);
// Compiles if needed, and writes the sealed entry, named by code_key, into `directory`.
Obtained export_prebuilt(const KernelSource& source, const std::string& arch, const std::string& directory, bool force = false);

// A kernel loaded into the driver. Not tied to a context, so one handle serves every device of its arch.
struct LoadedKernel {
    CUkernel handle = nullptr;
    std::string id;
};

struct LoadEvent {  // read by the demo, doctor and tests
    std::string kernel, configuration, arch, origin;
    double seconds;
};
std::vector<LoadEvent> load_events();

// Throws an Error where blocks of `device` have less shared memory than that.
void require_shared_memory(const KernelSource& source, int shared_bytes, const DeviceTraits& device);

// Cold path: throws if `stream` is capturing, before anything is loaded. Opts in to `shared_bytes` above 48 KB on `ordinal`.
LoadedKernel load(const KernelSource& source, int ordinal, CUstream stream, int shared_bytes);

struct LaunchShape {
    unsigned grid[3] = {1, 1, 1};
    unsigned threads = 1;
    unsigned shared_bytes = 0;
    unsigned cluster = 1;      // blocks, along x
    bool early_start = false;  // programmatic dependent launch: may start before the previous kernel of the stream ends
};

// Passes one argument struct by value. Before calling the driver it throws for an empty grid, a bad size, or a fork since the
// driver's first use.
void launch(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal, CUstream stream, const void* arguments);

// Sets 32-bit words to 0, in stream order, without torch's dispatcher.
void clear_words(void* words, std::size_t count, int ordinal, CUstream stream);

// The number of clusters of this shape that the device can run at once; 0 if it does not support the size. Call it before the
// first launch: it opts in to non-portable cluster sizes.
int most_clusters(const LoadedKernel& kernel, const LaunchShape& shape, int ordinal);

bool any_kernel_loaded();

}  // namespace gdn_cuda::jit
