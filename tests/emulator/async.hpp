// Asynchronous instructions in flight, as the emulator's other parts see them.
#pragma once

#include "clocks.hpp"
#include "grid.hpp"

namespace emulator {

// ---- Copies (tma.cpp)

bool complete_one_copy();       // false if none is in flight
Place place_of_arrival();       // the copy that begins or completes now, or nullptr
void check_copies_of_thread();  // when a thread returns
void end_copies();              // when all threads of the cluster have returned
void reset_copies();            // for a new cluster

// ---- Products (wgmma.cpp)

void check_products_of_thread();
void reset_products();

// ---- Barriers (barriers.cpp)

void check_mbarrier_of_copy(unsigned address, Place place);
unsigned phase_of(unsigned address, Place place);
Event end_of_phase(unsigned address, unsigned phase, Place place);
void bytes_arrive(unsigned address, unsigned bytes, unsigned phase, const Clock& before, Place place);
void reset_barriers();

}  // namespace emulator
