// Copies by TMA and other asynchronous ones that mbarriers or bulk groups count. What a load writes is NaN until it ends: at
// once, or as late as can be, and the other way round in the reversed run. So a store reads its source.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "grid.hpp"

namespace emulator {

using Coordinates = std::initializer_list<int>;

// Into this block, or into those of the cluster that `blocks` has bits of, each with its own mbarrier at the same place.
void tma_load(const void* map, Coordinates at, void* to, const void* mbarrier);
void tma_load_multicast(const void* map, Coordinates at, void* to, const void* mbarrier, unsigned blocks);
void bulk_load(const void* from, unsigned bytes, void* to, const void* mbarrier);
void store_async(std::uint64_t low, std::uint64_t high, unsigned bytes, unsigned to, unsigned mbarrier);

void tma_store(const void* map, Coordinates at, const void* from);
void bulk_store(void* to, const void* from, unsigned bytes);
void close_bulk_group();
// `written`: not only read.
void wait_for_bulk_groups(int most_in_flight, bool written);

void check_tensor_map(const void* map, int rank);

}  // namespace emulator
