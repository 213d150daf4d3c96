// Runs a kernel's grid on one CPU thread: clusters one after another, a fiber for every thread. A fiber runs until it waits at
// a barrier; the next one is drawn from a seed. A second run with the order reversed runs every two threads between the same
// barriers in the opposite order, so a race between them gives different results.
//
// An error of a kernel ends its launch: a deadlock, different barriers in one warp, an address outside of every tensor or of
// the block's shared memory, a misaligned address, an index outside of its array. Shared memory is NaN when a block begins, and
// the destination of a cp.async is NaN until the thread has waited for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

struct uint3 {
    unsigned x, y, z;
};

namespace emulator {

inline constexpr int kLanes = 32;  // threads of a warp

// ---- The running thread

extern uint3 thread_index, block_index, grid_size, block_size;

[[noreturn]] void fail(const std::string& text);
// `fail`, with a place in a kernel's code.
using Place = const void*;
[[noreturn]] void fail_at(Place place, const std::string& text);

// A barrier of the threads of the block that have not returned. `what` is the name of the instruction. Returns whether any
// thread passed `vote`.
bool sync_block(const char* what, bool vote = false);

// The cluster barrier, in one step or two.
void sync_cluster();
void arrive_in_cluster();
void wait_for_cluster();
unsigned rank_in_cluster(), blocks_of_cluster();
int cluster_index();  // clusters extend along x

// A barrier of the warp; returns the words of all lanes, which the second barrier after this one overwrites.
using Words = std::array<std::uint64_t, kLanes>;
const Words& sync_warp(const char* what, std::uint64_t word = 0);
// The same; `action` runs once, after all lanes have arrived and before any of them goes on.
void sync_warp_then(const char* what, std::uint64_t word, void (*action)(const Words&), Place place);
int lane();
int lanes_of_warp();  // the count of those that have not returned

// cp.async of 4, 8 or 16 bytes; a null `from` stores zeros.
void copy_later(void* to, const void* from, unsigned bytes = 16);
void close_group_of_copies();
void wait_for_copies(int most_groups_in_flight);

// ---- Shared memory

void* dynamic_shared(std::size_t alignment);
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);  // the same for all threads of a block
bool is_shared(const void* pointer);
unsigned shared_address(const void* pointer);  // in the window of 32-bit addresses, which a cluster shares
void* shared_pointer(unsigned address);
// The same variable in another block of the cluster. A store there needs a cluster barrier before it, because that block may
// not have begun, and must come before that block returns.
unsigned address_in_block(unsigned address, unsigned rank);
void* pointer_for_store(unsigned address);

// `Unique` is the type of a lambda: it differs for every variable and for every instantiation of the template around it.
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
