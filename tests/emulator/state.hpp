// The state of a launch, and how threads wait: for the emulator's files, not for kernels.
#pragma once

#include <setjmp.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "clocks.hpp"
#include "grid.hpp"

namespace emulator {

constexpr int kMostThreads = 1024, kMostBlocks = 8;  // per block, per cluster
constexpr int kMostFibers = kMostThreads * kMostBlocks;
constexpr std::size_t kPage = 4096, kStackBytes = 256 << 10, kSharedBytes = 227 << 10, kArenaBytes = 256 << 10;
constexpr std::size_t kArenaPitch =
    2 * kArenaBytes;  // the half between two arenas is protected; keeps the low 18 bits of addresses
constexpr std::size_t kStackPitch = kStackBytes + kPage;
constexpr unsigned char kUnwritten = 0xff;  // NaN in 4 bytes and in 2

inline std::size_t up_to(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

constexpr unsigned kNever = ~0u;

struct Copy {
    char* to;
    const char* from;
    unsigned bytes;
};
// What a thread waits for. The message of a deadlock names threads with equal ones together.
struct Wait {
    const char* what = nullptr;
    const void* object = nullptr;
    std::string (*describe)(const void* object) = nullptr;
    Place place = nullptr;

    bool operator==(const Wait& other) const { return what == other.what && object == other.object; }
};
// A thread's accumulators.
struct Registers {
    const void *begin, *end;
    Place place;  // where the wgmma was issued
};
struct Fiber {
    char* stack = nullptr;
    bool started = false;
    jmp_buf at;
    Wait wait;
    std::deque<std::vector<Copy>> copies;  // by group; the last one is open
    std::vector<Registers> in_flight;
    // Launch::fences at its last fence.proxy.async of shared memory, of global memory, and fence.mbarrier_init.
    unsigned fenced = 0, fenced_global = 0, fenced_init = 0;
    unsigned arrived_in_cluster = kNever;  // the generation of the cluster barrier
    // Address and value of its last ld.acquire, and Launch::events then.
    const void* acquired = nullptr;
    std::uint64_t acquired_value = 0, acquired_at = 0;
};
struct Barrier {
    std::vector<int> waiting;
    int members = 0;  // the threads that have not returned
    unsigned generation = 0;
};
struct BlockBarrier : Barrier {
    bool votes[2];
    Clock clock;  // joined clocks of the threads that wait
};
struct WarpBarrier : Barrier {
    Words words[2];
    void (*action)(const Words&) = nullptr;
};
struct ClusterBarrier : Barrier {
    int arrived = 0;    // threads, including those that do not wait yet
    Clock clock, over;  // joined clocks of the arrivals of this generation, and of the last one
};
struct Variable {
    const void* key;
    char* memory;
    std::size_t bytes;
};

struct Block {
    uint3 index;
    char* arena;  // shared memory
    int living;
    BlockBarrier barrier;
    std::vector<Variable> variables;  // static shared memory
    std::size_t static_bytes;
};

struct Launch {
    Run run;
    const void* args;
    std::size_t shared_bytes, shared_alignment;
    int threads, blocks;  // per block, per cluster
    Block block[kMostBlocks];
    ClusterBarrier cluster;
    WarpBarrier warps[kMostFibers / kLanes];
    std::vector<int> fiber_at, rank_of;
    std::bitset<kMostFibers> ready;  // by rank
    std::vector<int> spinning;       // threads that poll
    std::uint64_t events;            // counts what a polling thread may wait for
    unsigned fences;                 // counts fence.proxy.async
    std::string fault;
};

extern Launch now;
extern Fiber fibers[kMostFibers];
extern int current;  // fiber
extern char *const arenas, *const stacks;

inline int rank_of(int fiber) {
    return fiber / now.threads;
}
inline int thread_of(int fiber) {
    return fiber % now.threads;
}
inline Block& my_block() {
    return now.block[rank_of(current)];
}
inline int warp_of(int fiber) {  // in the cluster
    return rank_of(fiber) * (kMostThreads / kLanes) + thread_of(fiber) / kLanes;
}
inline bool is_in_arenas(const void* pointer) {
    return static_cast<std::size_t>(static_cast<const char*>(pointer) - arenas) < kMostBlocks * kArenaPitch;
}

inline bool is_in_stacks(const void* pointer) {
    return static_cast<std::size_t>(static_cast<const char*>(pointer) - stacks) < kMostFibers * kStackPitch;
}

std::string text_of(const uint3& at);
std::string text_of_shared(unsigned address);

// One of two choices, by a hash of what is chosen: the opposite in the reversed run.
bool drawn(std::uint64_t hash);
unsigned drawn_below(unsigned count);  // a random number

// The thread stops until `wake` is called for it.
void sleep(const Wait& wait);
void wake(int fiber);
// The thread stops until another event, or until no other thread can run. Polling without progress is a deadlock.
void spin(const Wait& wait);

// Memory between two protected pages.
char* guarded(std::size_t bytes);

}  // namespace emulator
