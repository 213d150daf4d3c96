// What the emulator's parts share, not kernels: the state of a launch, and how a thread waits.
#pragma once

#include <setjmp.h>

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "grid.hpp"
#include "order.hpp"

namespace emulator {

constexpr int kMostThreads = 1024, kMostBlocks = 8;  // of a block, of a cluster
constexpr int kMostFibers = kMostThreads * kMostBlocks;
constexpr std::size_t kPage = 4096, kStackBytes = 256 << 10, kSharedBytes = 227 << 10, kArenaBytes = 256 << 10;
constexpr std::size_t kArenaPitch =
    2 * kArenaBytes;  // nobody can touch what lies between two; keeps the low 18 bits of addresses
constexpr std::size_t kStackPitch = kStackBytes + kPage;
constexpr unsigned char kUnwritten = 0xff;  // four or two of them are NaN

inline std::size_t up_to(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

constexpr unsigned kNever = ~0u;

struct Copy {
    char* to;
    const char* from;
    unsigned bytes;
};
// What a thread waits for: threads with equal ones are named together.
struct Wait {
    const char* what = nullptr;
    const void* object = nullptr;
    std::string (*describe)(const void* object) = nullptr;
    Place place = nullptr;

    bool operator==(const Wait& other) const { return what == other.what && object == other.object; }
};
// Memory of a thread that stands for registers.
struct Registers {
    const void *begin, *end;
    Place place;  // of the instruction that will write them
};
struct Fiber {
    char* stack = nullptr;
    bool started = false;
    jmp_buf at;
    Wait wait;
    std::deque<std::vector<Copy>> copies;  // by group; the last is open
    std::vector<Registers> in_flight;
    // When it last ran fence.proxy.async of shared memory, the same of global memory, and fence.mbarrier_init: Launch::fences.
    unsigned fenced = 0, fenced_global = 0, fenced_init = 0;
    unsigned arrived_in_cluster = kNever;  // the generation of its meeting
    // What it read last by ld.acquire, and the events so far.
    const void* acquired = nullptr;
    std::uint64_t acquired_value = 0, acquired_at = 0;
};
struct Meeting {
    std::vector<int> waiting;
    int members = 0;  // threads that have not returned
    unsigned generation = 0;
};
struct BlockMeeting : Meeting {
    bool votes[2];
    Clock clock;  // of those that wait
};
struct WarpMeeting : Meeting {
    Words words[2];
    void (*action)(const Words&) = nullptr;
};
struct ClusterMeeting : Meeting {
    int arrived = 0;    // threads, waiting or not
    Clock clock, over;  // of those that have arrived, and had in the last meeting
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
    BlockMeeting meeting;
    std::vector<Variable> variables;  // static shared memory
    std::size_t static_bytes;
};

struct Launch {
    Run run;
    const void* args;
    std::size_t shared_bytes, shared_alignment;
    int threads, blocks;  // of a block, of a cluster
    Block block[kMostBlocks];
    ClusterMeeting cluster;
    WarpMeeting warps[kMostFibers / kLanes];
    std::vector<int> fiber_at, rank_of;
    std::bitset<kMostFibers> ready;  // by rank
    std::vector<int> spinning;       // threads that ask again and again
    std::uint64_t events;            // what one of those may wait for
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

// Which of two things happens, by a hash of what it is: the other one in the reversed run.
bool drawn(std::uint64_t hash);
unsigned drawn_below(unsigned count);  // at random

// The thread stops until `wake` is called for it.
void sleep(const Wait& wait);
void wake(int fiber);
// The thread stops until something has happened, or nothing else can; what does so for ever is in a deadlock.
void spin(const Wait& wait);

// Memory between two pages that nothing can touch.
char* guarded(std::size_t bytes);

}  // namespace emulator
