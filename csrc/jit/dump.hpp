// GDN_JIT_DUMP: writes source, PTX and SASS beside a cache entry.
#pragma once

#include <string>

#include "compiler.hpp"
#include "store.hpp"

namespace gdn_cuda::jit {

bool dumped(const Store& store, const KernelSource& source, const std::string& key);
void dump(Store& store, const KernelSource& source, const std::string& key, const Compiled& compiled, const Toolchain& tools);

}  // namespace gdn_cuda::jit
