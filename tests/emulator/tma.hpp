// TMA and the other asynchronous copies that mbarriers or bulk groups count. The destination of a load is NaN until the load
// completes: either at once or as late as possible, and the opposite in the reversed run. A store reads its source likewise.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "grid.hpp"

namespace emulator {

using Coordinates = std::initializer_list<int>;

// `blocks` is the multicast mask; each block's mbarrier is at the same offset.
void tma_load(const void* map, Coordinates at, void* to, const void* mbarrier);
void tma_load_multicast(const void* map, Coordinates at, void* to, const void* mbarrier, unsigned blocks);
void bulk_load(const void* from, unsigned bytes, void* to, const void* mbarrier);
void store_async(std::uint64_t low, std::uint64_t high, unsigned bytes, unsigned to, unsigned mbarrier);

void tma_store(const void* map, Coordinates at, const void* from);
void bulk_store(void* to, const void* from, unsigned bytes);
void close_bulk_group();
// `written`: wait until the copies are written, not only read.
void wait_for_bulk_groups(int most_in_flight, bool written);

void check_tensor_map(const void* map, int rank);

}  // namespace emulator
