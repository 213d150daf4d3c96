#include "barriers.hpp"

#include <bitset>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "async.hpp"
#include "faults.hpp"
#include "state.hpp"

namespace emulator {
namespace {

// ---- Named barriers

constexpr unsigned kNamedBarriers = 16;

struct NamedBarrier {
    std::vector<int> waiting;
    std::bitset<kMostThreads> arrived;
    unsigned expected = 0, count = 0;
    unsigned generation = 0;
    bool votes[2] = {};
    Clock clock;  // joined clocks of the threads that have arrived
};
NamedBarrier named_barriers[kMostBlocks][kNamedBarriers];

std::string describe_named(const void* object) {
    const auto& barrier = *static_cast<const NamedBarrier*>(object);
    const auto number = (static_cast<const NamedBarrier*>(object) - named_barriers[0]) % kNamedBarriers;
    return std::to_string(number) + " (" + std::to_string(barrier.count) + " of " + std::to_string(barrier.expected) +
           " threads are there)";
}

void complete(NamedBarrier& barrier, Place place) {
    for (int first = 0; first < now.threads; first += kLanes) {
        int lanes = 0;
        for (int each = first; each < first + kLanes; ++each) lanes += barrier.arrived[each];
        if (lanes != 0 && lanes != kLanes)
            fail_at(place, "a named barrier is complete with part of the warp of thread " + std::to_string(first) +
                               ": the device counts whole warps");
    }
    for (const int fiber : barrier.waiting) {
        acquire_for(fiber, barrier.clock);
        wake(fiber);
    }
    barrier.waiting.clear();
    barrier.clock.clear();
    barrier.arrived.reset();
    barrier.count = 0;
    barrier.votes[++barrier.generation % 2] = false;
    ++now.events;
}

NamedBarrier& arrive(unsigned number, unsigned threads, Place place) {
    if (number == 0 || number >= kNamedBarriers)
        fail_at(place, "expected a named barrier of number 1 to 15, 0 is __syncthreads");
    if (threads == 0 || threads % kLanes != 0 || threads > static_cast<unsigned>(now.threads))
        fail_at(place, "expected threads of whole warps of the block at a named barrier, got " + std::to_string(threads));
    NamedBarrier& barrier = named_barriers[rank_of(current)][number];
    const int mine = thread_of(current);
    if (barrier.count == 0) barrier.expected = threads;
    if (barrier.expected != threads)
        fail_at(place, "named barrier " + std::to_string(number) + " of " + std::to_string(threads) +
                           " threads, where others expect " + std::to_string(barrier.expected));
    if (barrier.arrived[mine])
        fail_at(place, "a second time at named barrier " + std::to_string(number) + " before it is complete");
    barrier.arrived.set(mine);
    ++barrier.count;
    release(barrier.clock);
    return barrier;
}

bool sync(unsigned number, unsigned threads, bool vote, Place place) {
    NamedBarrier& barrier = arrive(number, threads, place);
    bool& votes = barrier.votes[barrier.generation % 2];
    votes = votes || vote;
    barrier.waiting.push_back(current);
    if (barrier.count == barrier.expected) complete(barrier, place);
    sleep({"named barrier ", &barrier, describe_named, place});
    return votes;
}

// ---- mbarriers

// The word of an initialised mbarrier in shared memory: this, xor its index in `mbarriers`.
constexpr std::uint64_t kMark = 0x6d62617272000000;
constexpr unsigned kMostArrivals = (1u << 20) - 1, kMostBytes = (1u << 20) - 1;

struct Mbarrier {
    unsigned address, expected, missing;  // expected and missing arrivals of a phase
    long long bytes = 0;                  // expected and not yet arrived
    unsigned phase = 0;
    std::vector<int> waiting;
    int init_thread;
    unsigned init_time;  // the value of Launch::fences
    Place place;         // where it was initialised
    unsigned number;
    bool valid = true;
    Clock clock = {}, over = {};  // of the arrivals in this phase, and in the last one
};
std::deque<Mbarrier> mbarriers;             // those of the cluster
std::map<const unsigned*, Clock> counters;  // in global memory

std::string text_of(const Mbarrier& barrier) {
    return "mbarrier at " + text_of_shared(barrier.address) + " (phase " + std::to_string(barrier.phase) + ": " +
           std::to_string(barrier.missing) + " of " + std::to_string(barrier.expected) + " arrivals and " +
           std::to_string(barrier.bytes) + " bytes are missing; initialised" + emulator::text_of(barrier.place) + ")";
}
std::string describe_mbarrier(const void* object) {
    return text_of(*static_cast<const Mbarrier*>(object));
}

// Also for a copy that ends, when the current thread may be of another block.
Mbarrier& any_mbarrier_at(unsigned address, Place place) {
    if (address % 8 != 0) fail_at(place, "an mbarrier at a misaligned address");
    if (!is_in_arenas(shared_pointer(address))) fail_at(place, "an mbarrier outside of shared memory");
    std::uint64_t word;
    std::memcpy(&word, shared_pointer(address), sizeof word);
    const std::uint64_t number = word ^ kMark;
    if (number >= mbarriers.size() || mbarriers[number].address != address || !mbarriers[number].valid)
        fail_at(place, "no mbarrier at " + text_of_shared(address) + ": not initialised, or overwritten");
    return mbarriers[number];
}
Mbarrier& mbarrier_at(unsigned address, Place place) {
    Mbarrier& barrier = any_mbarrier_at(address, place);
    if (static_cast<int>(address / kArenaPitch) != rank_of(current)) pointer_for_store(address);  // checks that its block runs
    return barrier;
}

void complete_if_nothing_is_missing(Mbarrier& barrier, Place place) {
    ++now.events;
    if (barrier.missing > 0 || barrier.bytes > 0) return;
    if (barrier.bytes < 0) fail_at(place, "more bytes arrive than are expected at " + text_of(barrier));
    barrier.over = std::move(barrier.clock);
    barrier.clock.clear();
    add_phase(barrier.over, barrier.number, barrier.phase);
    ++barrier.phase;
    barrier.missing = barrier.expected;
    for (const int fiber : barrier.waiting) wake(fiber);
    barrier.waiting.clear();
}

void expect(Mbarrier& barrier, unsigned bytes, Place place) {
    barrier.bytes += bytes;
    if (bytes > kMostBytes || barrier.bytes > kMostBytes) fail_at(place, "more bytes than an mbarrier counts");
}
void arrive(Mbarrier& barrier, Place place) {
    if (barrier.missing == 0) fail_at(place, "one arrival more than is expected at " + text_of(barrier));
    --barrier.missing;
    release(barrier.clock);
    complete_if_nothing_is_missing(barrier, place);
}

}  // namespace

void sync_at_barrier(unsigned number, unsigned threads) {
    sync(number, threads, false, __builtin_return_address(0));
}
bool any_at_barrier(unsigned number, unsigned threads, bool vote) {
    return sync(number, threads, vote, __builtin_return_address(0));
}
void arrive_at_barrier(unsigned number, unsigned threads) {
    const Place place = __builtin_return_address(0);
    NamedBarrier& barrier = arrive(number, threads, place);
    if (barrier.count == barrier.expected) complete(barrier, place);
}

void init_mbarrier(unsigned address, unsigned arrivals) {
    const Place place = __builtin_return_address(0);
    if (address % 8 != 0) fail_at(place, "an mbarrier at a misaligned address");
    if (arrivals == 0 || arrivals > kMostArrivals) fail_at(place, "an mbarrier of that many arrivals cannot be");
    for (const Mbarrier& other : mbarriers)
        if (other.valid && other.address == address) fail_at(place, "an mbarrier is initialised twice without mbarrier.inval");
    const std::uint64_t word = kMark ^ mbarriers.size();
    std::memcpy(shared_pointer(address), &word, sizeof word);
    mbarriers.push_back({.address = address,
                         .expected = arrivals,
                         .missing = arrivals,
                         .waiting = {},
                         .init_thread = current,
                         .init_time = now.fences + 1,
                         .place = place,
                         .number = static_cast<unsigned>(mbarriers.size())});
}
void invalidate_mbarrier(unsigned address) {
    const Place place = __builtin_return_address(0);
    Mbarrier& barrier = mbarrier_at(address, place);
    if (!barrier.waiting.empty()) fail_at(place, "mbarrier.inval, on which threads wait: " + text_of(barrier));
    if (barrier.bytes != 0) fail_at(place, "mbarrier.inval, at which bytes are to arrive: " + text_of(barrier));
    barrier.valid = false;
    std::memset(shared_pointer(address), kUnwritten, sizeof(std::uint64_t));
}
void expect_bytes(unsigned address, unsigned bytes) {
    const Place place = __builtin_return_address(0);
    expect(mbarrier_at(address, place), bytes, place);
}
void complete_bytes(unsigned address, unsigned bytes) {
    const Place place = __builtin_return_address(0);
    Mbarrier& barrier = mbarrier_at(address, place);
    release(barrier.clock);
    barrier.bytes -= bytes;
    complete_if_nothing_is_missing(barrier, place);
}
void arrive_at_mbarrier(unsigned address) {
    const Place place = __builtin_return_address(0);
    arrive(mbarrier_at(address, place), place);
}
void arrive_and_expect_bytes(unsigned address, unsigned bytes) {
    const Place place = __builtin_return_address(0);
    Mbarrier& barrier = mbarrier_at(address, place);
    expect(barrier, bytes, place);
    arrive(barrier, place);
}
bool is_phase_over(unsigned address, unsigned parity) {
    const Place place = __builtin_return_address(0);
    Mbarrier& barrier = mbarrier_at(address, place);
    if ((barrier.phase & 1) == parity) spin({"", &barrier, describe_mbarrier, place});
    if ((mbarrier_at(address, place).phase & 1) == parity) return false;
    acquire(barrier.over);
    return true;
}
void wait_for_phase(unsigned address, unsigned parity) {
    const Place place = __builtin_return_address(0);
    if (parity > 1) fail_at(place, "the parity of a phase is 0 or 1");
    while (true) {
        Mbarrier& barrier = mbarrier_at(address, place);
        if ((barrier.phase & 1) != parity) return acquire(barrier.over);
        barrier.waiting.push_back(current);
        sleep({"", &barrier, describe_mbarrier, place});
    }
}

void check_mbarrier_of_copy(unsigned address, Place place) {
    const Mbarrier& barrier = mbarrier_at(address, place);
    const auto is_known = [&](int fiber) {
        return std::max(fibers[fiber].fenced_init, fibers[fiber].fenced) >= barrier.init_time;
    };
    if (!is_known(barrier.init_thread) && !is_known(current))
        fail_at(place, "without a fence after its init, TMA uses the " + text_of(barrier));
}
unsigned phase_of(unsigned address, Place place) {
    return mbarrier_at(address, place).phase;
}
Event end_of_phase(unsigned address, unsigned phase, Place place) {
    return event_of_phase(any_mbarrier_at(address, place).number, phase);
}
void bytes_arrive(unsigned address, unsigned bytes, unsigned phase, const Clock& before, Place place) {
    Mbarrier& barrier = any_mbarrier_at(address, place);
    if (barrier.phase != phase)
        fail_at(place, "bytes arrive when their phase is over, in which fewer were expected: " + text_of(barrier) +
                           ", by the copy that begins");
    join(barrier.clock, before);
    barrier.bytes -= bytes;
    complete_if_nothing_is_missing(barrier, place);
}
void reset_barriers() {
    mbarriers.clear();
    counters.clear();
    for (int rank = 0; rank < now.blocks; ++rank)
        for (NamedBarrier& each : named_barriers[rank]) each = {};
}

void fence_mbarrier_init() {
    fibers[current].fenced_init = ++now.fences;
}
void fence_async_shared() {
    fibers[current].fenced = ++now.fences;
}
void fence_async_global() {
    fibers[current].fenced_global = ++now.fences;
}

unsigned load_acquire(const unsigned* from) {
    Fiber& fiber = fibers[current];
    const auto read = [&] { return *static_cast<const volatile unsigned*>(from); };
    const bool again = fiber.acquired == from && fiber.acquired_value == read();
    if (again)
        spin({"ld.acquire of a value that no thread of this or an earlier block changes", from, nullptr,
              __builtin_return_address(0)});
    fiber.acquired = from;
    if (const auto found = counters.find(from); found != counters.end()) acquire(found->second);
    return fiber.acquired_value = read();
}
void add_release(unsigned* to, unsigned x) {
    release(counters[to]);
    *to += x;
    ++now.events;
}

}  // namespace emulator
