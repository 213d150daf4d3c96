// Named barriers, mbarriers and fences. Addresses are in the shared window.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace emulator {

// `threads` counts whole warps.
void sync_at_barrier(unsigned number, unsigned threads);
void arrive_at_barrier(unsigned number, unsigned threads);
bool any_at_barrier(unsigned number, unsigned threads, bool vote);

void init_mbarrier(unsigned address, unsigned arrivals);
void invalidate_mbarrier(unsigned address);
void expect_bytes(unsigned address, unsigned bytes);
void complete_bytes(unsigned address, unsigned bytes);
void arrive_at_mbarrier(unsigned address);
void arrive_and_expect_bytes(unsigned address, unsigned bytes);
// Whether the phase with that parity has completed. If not, other threads run before this returns.
bool is_phase_over(unsigned address, unsigned parity);
void wait_for_phase(unsigned address, unsigned parity);

void fence_mbarrier_init();
void fence_async_shared();
void fence_async_global();

// Counters in global memory.
unsigned load_acquire(const unsigned* from);
void add_release(unsigned* to, unsigned x);

}  // namespace emulator
