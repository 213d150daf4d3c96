// Which shared memory asynchronous instructions read and write, who has written it before without a fence between, and which
// warps read and write it without a barrier between. Kernels that have such instructions are compiled with -fsanitize=thread,
// which makes calls of their loads and stores (watch.cpp).
#pragma once

#include <cstddef>
#include <vector>

#include "order.hpp"
#include "state.hpp"

namespace emulator {

constexpr unsigned kPiece = 16;  // bytes of shared memory that are watched as one

// Registers of the running thread that instructions in flight will write.
extern const std::vector<Registers>* watched_registers;

// An instruction that reads or writes memory after it has begun.
struct Asynchronous {
    const char* what;
    Place place;
    int first, last;  // threads that issue it
};
// Pieces by their shared-window addresses. Between the two calls nothing may write what is read, nor touch what is written;
// what threads have stored before must be behind a fence. The end of a read is an event of the running warp, that of a write
// `event`.
void begin_read(unsigned address, const Asynchronous& by);
void end_read(unsigned address);
void begin_write(unsigned address, const Asynchronous& by);
void end_write(unsigned address, const Event& event);
// By the emulator for the running thread.
void note_store(const void* to, std::size_t bytes);
// Global memory that threads of this launch have stored, and no fence.proxy.async has made known to TMA.
void check_global_read(const void* from, std::size_t bytes, const Asynchronous& by);

void forget_watched(int rank);  // a block of the cluster begins
void forget_global_stores();    // a launch begins

}  // namespace emulator
