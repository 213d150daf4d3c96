// The grid of a kernel on one CPU thread: clusters of blocks one after the other, a fiber for every thread. A fiber runs until
// it waits for others; which one goes on then is drawn from a seed, and a second run with the same seed reversed has every two
// threads between the same barriers in the other order: a race between them shows as a difference of their results.
//
// What a kernel does wrong ends its launch with a text: a deadlock, different barriers in one warp, an address outside of every
// tensor or of the block's shared memory, a misaligned address, an index outside of its array. Shared memory is full of NaN
// when a block begins, and what cp.async copies is NaN until the thread has waited for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

struct uint3 {
    unsigned x, y, z;
};

namespace emulator {

inline constexpr int kLanes = 32;  // of a warp

// ---- Of the running thread

extern uint3 thread_index, block_index, grid_size, block_size;

[[noreturn]] void fail(const std::string& text);
// The same, with a place in the code of a kernel.
using Place = const void*;
[[noreturn]] void fail_at(Place place, const std::string& text);

// Waits for the threads of the block that have not returned. `what` is the name of the barrier. Returns whether any said
// `vote`.
bool meet_block(const char* what, bool vote = false);

// The same in its cluster, at once or in two steps.
void meet_cluster();
void arrive_in_cluster();
void wait_for_cluster();
unsigned rank_in_cluster(), blocks_of_cluster();
int cluster_index();  // clusters lie along x

// The same in its warp; returns what all lanes said, which is overwritten in the meeting after the next.
using Words = std::array<std::uint64_t, kLanes>;
const Words& meet_warp(const char* what, std::uint64_t word = 0);
// The same; `action` runs once, when all lanes have said their words and none goes on.
void meet_warp_then(const char* what, std::uint64_t word, void (*action)(const Words&), Place place);
int lane();
int lanes_of_warp();  // that have not returned

// Copies in flight, of 4, 8 or 16 bytes. `from` is null for zeros.
void copy_later(void* to, const void* from, unsigned bytes = 16);
void close_group_of_copies();
void wait_for_copies(int most_groups_in_flight);

// ---- Shared memory

void* dynamic_shared(std::size_t alignment);
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);  // the same for all threads of a block
bool is_shared(const void* pointer);
unsigned shared_address(const void* pointer);  // in the window of 32-bit addresses, which a cluster shares
void* shared_pointer(unsigned address);
// The same variable of another block of the cluster. To store there, that block must have begun, which only a meeting of the
// cluster says, and must not have returned.
unsigned address_in_block(unsigned address, unsigned rank);
void* pointer_for_store(unsigned address);

// `unique` is a lambda: every variable has its own, and every instantiation of the template that it is in.
template <class T, class Unique>
T& shared_variable(Unique) {
    static const char key = 0;
    return *static_cast<T*>(static_shared(&key, sizeof(T), alignof(T)));
}

// ---- Kernels

using Run = void (*)(const void* args);
void add_kernel(const std::string& kernel, const std::string& configuration, Run run);

template <auto kFunction>
struct Kernel;
template <class Args, void (*kFunction)(Args)>
struct Kernel<kFunction> {
    Kernel(const char* kernel, const char* configuration) {
        add_kernel(kernel, configuration, [](const void* args) { kFunction(*static_cast<const Args*>(args)); });
    }
};

}  // namespace emulator
