// Barriers with numbers, mbarriers in shared memory, and fences, as kernels have them. Addresses are those of the shared
// window.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace emulator {

// `threads` meet, whole warps of them; who arrives only does not wait.
void sync_at_barrier(unsigned number, unsigned threads);
void arrive_at_barrier(unsigned number, unsigned threads);
bool any_at_barrier(unsigned number, unsigned threads, bool vote);

void init_mbarrier(unsigned address, unsigned arrivals);
void invalidate_mbarrier(unsigned address);
void expect_bytes(unsigned address, unsigned bytes);
void complete_bytes(unsigned address, unsigned bytes);
void arrive_at_mbarrier(unsigned address);
void arrive_and_expect_bytes(unsigned address, unsigned bytes);
// Whether the phase of that parity is over. A thread that is told that it is not lets others go on first.
bool is_phase_over(unsigned address, unsigned parity);
void wait_for_phase(unsigned address, unsigned parity);

void fence_mbarrier_init();
void fence_async_shared();
void fence_async_global();

// A counter in global memory.
unsigned load_acquire(const unsigned* from);
void add_release(unsigned* to, unsigned x);

}  // namespace emulator
