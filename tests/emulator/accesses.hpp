// Records accesses to shared memory and reports two that are unordered: by an asynchronous instruction in flight, by an
// asynchronous instruction after a store without a proxy fence, or by two warps without a barrier between them. Kernels with
// asynchronous instructions are compiled with -fsanitize=thread, so that g++ emits a call for every load and store.
#pragma once

#include <cstddef>
#include <vector>

#include "clocks.hpp"
#include "state.hpp"

namespace emulator {

constexpr unsigned kVectorBytes = 16;  // bytes of shared memory that are tracked together

// Registers of the running thread that wgmmas in flight will write.
extern const std::vector<Registers>* registers_in_flight;

// An instruction that may read or write memory after its thread has executed later ones.
struct Asynchronous {
    const char* what;
    Place place;
    int first, last;  // threads that issue it
};
// Addresses are in the shared window. Between begin_read and end_read nobody may write these bytes; between begin_write and
// end_write nobody may read or write it. Earlier stores by threads must be fenced. A read ends with an event of the running
// warp, a write with `event`.
void begin_read(unsigned address, const Asynchronous& by);
void end_read(unsigned address);
void begin_write(unsigned address, const Asynchronous& by);
void end_write(unsigned address, const Event& event);
// A store that the emulator makes for the running thread.
void note_store(const void* to, std::size_t bytes);
// Fails if threads of this launch have stored to this global memory without a fence.proxy.async since.
void check_global_read(const void* from, std::size_t bytes, const Asynchronous& by);

void reset_accesses(int rank);  // a block of the cluster begins
void reset_global_stores();     // a launch begins

}  // namespace emulator
