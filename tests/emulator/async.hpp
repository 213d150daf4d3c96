// What goes on without the threads that have begun it, for the emulator's other parts.
#pragma once

#include "grid.hpp"
#include "order.hpp"

namespace emulator {

// ---- Copies (tma.cpp)

bool something_arrives();       // lets a copy end, if one is in flight
Place place_of_arrival();       // of the copy that is ending or beginning, else nullptr
void check_copies_of_thread();  // that returns
void end_copies();              // all threads of the cluster have returned
void forget_copies();           // a cluster begins

// ---- Products (wgmma.cpp)

void check_products_of_thread();
void forget_products();

// ---- Barriers (barriers.cpp)

void check_mbarrier_of_copy(unsigned address, Place place);
unsigned phase_of(unsigned address, Place place);
Event end_of_phase(unsigned address, unsigned phase, Place place);
void bytes_arrive(unsigned address, unsigned bytes, unsigned phase, const Clock& before, Place place);
void forget_barriers();

}  // namespace emulator
