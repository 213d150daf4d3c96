// Results whose length is an integer argument: a result larger than the machine's memory is refused before it is allocated.
#pragma once

#include <initializer_list>

#include "../launch/memory_limit.hpp"
#include "tensor.hpp"

namespace gdn_cuda {

// Throws unless a result of `type` with these sizes, on the device of `like`, is no larger than memory. `argument`: the
// integer that decides the length.
inline void check_result_size(const Checks& check, const char* argument, std::initializer_list<int64_t> sizes, DType type,
                              const View& like) {
    double bytes = bytes_of(type);
    for (const int64_t size : sizes) bytes *= static_cast<double>(size);
    const int64_t most = most_result_bytes(like.is_cuda());
    GDN_REQUIRE(check, bytes <= static_cast<double>(most), argument,
                fmt::format("a result of at most {} bytes, as memory has", most), fmt::format("{:.4g} bytes", bytes));
}

}  // namespace gdn_cuda
