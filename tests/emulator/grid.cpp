// Fibers and their schedule; barriers of blocks, warps and clusters; shared memory.
#include "grid.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "accesses.hpp"
#include "async.hpp"
#include "faults.hpp"
#include "launch.hpp"
#include "state.hpp"

namespace emulator {

uint3 thread_index, block_index, grid_size, block_size;
Launch now;
Fiber fibers[kMostFibers];
int current = -1;

static char* reserved(std::size_t bytes) {
    void* const all = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(all);
}
char* guarded(std::size_t bytes) {
    char* const memory = reserved(bytes + 2 * kPage) + kPage;
    mprotect(memory, bytes, PROT_READ | PROT_WRITE);
    return memory;
}
char* const arenas = [] {
    char* const all = reserved(kMostBlocks * kArenaPitch);
    for (int block = 0; block < kMostBlocks; ++block) mprotect(all + block * kArenaPitch, kArenaBytes, PROT_READ | PROT_WRITE);
    return all;
}();
char* const stacks = reserved(kMostFibers * kStackPitch) + kPage;

namespace {

constexpr std::size_t kAlignment = 128;  // minimum for dynamic shared memory
constexpr int kMostIdlePolls = 100;      // of all polling threads, without progress

jmp_buf scheduler;
std::mt19937 random_bits;  // seeded for each cluster

WarpBarrier& my_warp() {
    return now.warps[warp_of(current)];
}

struct Schedule {
    unsigned seed = 0;
    bool reversed = false;
} schedule;

std::map<std::string, Run>& kernels() {
    static std::map<std::string, Run> all;
    return all;
}
void (*load_kernel)(const char* kernel, const char* configuration) = nullptr;

struct Launched {
    std::string name;
    std::size_t blocks;
};
std::vector<Launched> launched;

// ---- Threads

void yield() {
    if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

void complete(Barrier& barrier) {
    for (const int fiber : barrier.waiting) wake(fiber);
    barrier.waiting.clear();
    ++barrier.generation;
    ++now.events;
}
void complete(WarpBarrier& warp) {
    if (const auto action = std::exchange(warp.action, nullptr)) action(warp.words[warp.generation % 2]);
    complete(static_cast<Barrier&>(warp));
    warp.words[warp.generation % 2].fill(~std::uint64_t{0});  // NaN, from lanes that have returned
}
void complete(BlockBarrier& block) {
    for (const int fiber : block.waiting) acquire_for(fiber, block.clock);
    block.clock.clear();
    complete(static_cast<Barrier&>(block));
    block.votes[block.generation % 2] = false;
}

template <class M>
void complete_if_all_arrived(M& barrier) {
    if (!barrier.waiting.empty() && static_cast<int>(barrier.waiting.size()) == barrier.members) complete(barrier);
}

template <class M>
void wait_in(M& barrier, const char* what, Place place) {
    if (!barrier.waiting.empty()) {
        const int other = barrier.waiting.front();
        if (std::string_view(fibers[other].wait.what) != what)
            fail(std::string(what) + ", where thread " + std::to_string(thread_of(other)) + " waits in " +
                 fibers[other].wait.what);
    }
    barrier.waiting.push_back(current);
    fibers[current].wait = {what, nullptr, nullptr, place};  // named in errors of threads that arrive elsewhere
    complete_if_all_arrived(barrier);
    yield();
}

// A thread may arrive at the cluster barrier long before it waits.
void complete_cluster_if_all_arrived() {
    ClusterBarrier& cluster = now.cluster;
    if (cluster.arrived == 0 || cluster.arrived < cluster.members) return;
    cluster.arrived = 0;
    cluster.over = std::move(cluster.clock);
    cluster.clock.clear();
    complete(static_cast<Barrier&>(cluster));
}

void fiber() {
    now.run(now.args);
    check_products_of_thread();
    check_copies_of_thread();
    fibers[current].wait = {};
    ++now.events;
    WarpBarrier& warp = my_warp();
    Block& block = my_block();
    --block.living;
    --block.barrier.members;
    --warp.members;
    --now.cluster.members;
    if (fibers[current].arrived_in_cluster == now.cluster.generation) --now.cluster.arrived;
    complete_if_all_arrived(block.barrier);
    complete_if_all_arrived(warp);
    complete_cluster_if_all_arrived();
    _longjmp(scheduler, 1);
}

void resume(int fiber_number) {
    current = fiber_number;
    set_running(fiber_number);
    thread_index = {static_cast<unsigned>(thread_of(current)), 0, 0};
    block_index = my_block().index;
    Fiber& next = fibers[current];
    registers_in_flight = &next.in_flight;
    if (next.started) _longjmp(next.at, 1);
    next.started = true;
    if (next.stack == nullptr) {
        next.stack = stacks + current * kStackPitch;
        mprotect(next.stack, kStackBytes, PROT_READ | PROT_WRITE);
    }
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = next.stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, fiber, 0);
    setcontext(&context);
}

// The priority of threads when several can run: shuffled by thread, by warp or by warpgroup.
void draw_order() {
    const uint3 first = now.block[0].index;
    const int fibers_in_all = now.threads * now.blocks;
    std::seed_seq seeds{schedule.seed, first.x, first.y, first.z};
    random_bits.seed(seeds);
    now.fiber_at.resize(fibers_in_all);
    std::iota(now.fiber_at.begin(), now.fiber_at.end(), 0);
    std::ranges::shuffle(now.fiber_at, random_bits);
    constexpr int kTogether[] = {1, kLanes, 4 * kLanes};
    const int together = kTogether[random_bits() % std::size(kTogether)];
    std::vector<unsigned> place((fibers_in_all + together - 1) / together);
    std::ranges::generate(place, random_bits);
    std::ranges::stable_sort(now.fiber_at, {}, [&](int each) { return place[each / together]; });
    if (schedule.reversed) std::ranges::reverse(now.fiber_at);
    now.rank_of.resize(fibers_in_all);
    for (int rank = 0; rank < fibers_in_all; ++rank) now.rank_of[now.fiber_at[rank]] = rank;
}

std::string named(const Wait& wait) {
    if (wait.what == nullptr) return "returned";
    return wait.what + (wait.describe ? wait.describe(wait.object) : "") + text_of(wait.place);
}

std::string deadlock() {
    std::string text = "a deadlock:";
    for (int each = 0; each < now.threads * now.blocks; ++each) {
        const bool is_first = thread_of(each) == 0;
        if (!is_first && fibers[each].wait == fibers[each - 1].wait) continue;
        if (each > 0) text += is_first ? "; block " + text_of(now.block[rank_of(each)].index) + ":" : ",";
        text += " from thread " + std::to_string(thread_of(each)) + " on " + named(fibers[each].wait);
    }
    return text;
}

// Wakes the threads that poll; returns false after many polls without progress.
bool poll_again(std::uint64_t& before, int& idle_polls) {
    if (now.spinning.empty() || (before == now.events && ++idle_polls > kMostIdlePolls)) return false;
    if (before != now.events) idle_polls = 0;
    before = now.events;
    for (const int fiber : std::exchange(now.spinning, {})) wake(fiber);
    return true;
}

void run_fibers() {
    std::uint64_t before = ~std::uint64_t{0};
    int idle_polls = 0;
    while (now.cluster.members > 0 && now.fault.empty()) {
        const std::size_t rank = now.ready._Find_first();
        if (_setjmp(scheduler) != 0) continue;
        if (rank < now.ready.size()) {
            now.ready.reset(rank);
            resume(now.fiber_at[rank]);
        } else if (!complete_one_copy() && !poll_again(before, idle_polls)) {
            now.fault = "block " + text_of(now.block[0].index) + ", " + deadlock();
        }
    }
}

void prepare_block(int rank, const uint3& index) {
    Block& block = now.block[rank];
    block = {index, arenas + rank * kArenaPitch, now.threads, {{{}, now.threads, 0}, {false, false}, {}}, {}, 0};
    std::memset(block.arena, kUnwritten, kArenaBytes);
    reset_accesses(rank);
    for (int warp = 0; warp * kLanes < now.threads; ++warp) {
        WarpBarrier& barrier = now.warps[rank * (kMostThreads / kLanes) + warp];
        barrier = {{{}, std::min(kLanes, now.threads - warp * kLanes), 0}, {}};
        for (Words& words : barrier.words) words.fill(~std::uint64_t{0});
    }
}

void run_cluster(const uint3& first) {
    const int fibers_in_all = now.threads * now.blocks;
    for (int rank = 0; rank < now.blocks; ++rank)
        prepare_block(rank, {first.x + static_cast<unsigned>(rank), first.y, first.z});
    now.cluster = {{{}, fibers_in_all, 0}, 0, {}, {}};
    for (int each = 0; each < fibers_in_all; ++each) {
        Fiber& fiber = fibers[each];
        fiber.started = false;
        fiber.wait = {};
        fiber.copies.assign(1, {});
        fiber.in_flight.clear();
        fiber.fenced = fiber.fenced_global = fiber.fenced_init = 0;
        fiber.arrived_in_cluster = kNever;
        fiber.acquired = nullptr;
    }
    reset_copies();
    reset_products();
    reset_barriers();
    reset_clocks();
    draw_order();
    now.ready.reset();
    now.spinning.clear();
    for (int rank = 0; rank < fibers_in_all; ++rank) now.ready.set(rank);
    run_fibers();
    if (now.fault.empty()) end_copies();
    current = -1;
}

// Dynamic shared memory ends with the arena; the page after it is protected.
char* dynamic_of(const Block& block) {
    return block.arena + kArenaBytes - up_to(now.shared_bytes, std::max(now.shared_alignment, kAlignment));
}

// Whether the kernel wrote to the block's arena outside of its variables.
bool wrote_outside(const Block& block) {
    const auto is_written = [](char byte) { return static_cast<unsigned char>(byte) != kUnwritten; };
    const char* at = block.arena;
    for (const Variable& variable : block.variables) {  // in the order of their addresses
        if (std::any_of(at, static_cast<const char*>(variable.memory), is_written)) return true;
        at = variable.memory + variable.bytes;
    }
    const char* const dynamic = dynamic_of(block);
    return std::any_of(at, dynamic, is_written) ||
           std::any_of(dynamic + now.shared_bytes, static_cast<const char*>(block.arena) + kArenaBytes, is_written);
}

}  // namespace

bool drawn(std::uint64_t hash) {
    return ((hash ^ schedule.seed) % 2 == 0) != schedule.reversed;
}
unsigned drawn_below(unsigned count) {
    return random_bits() % count;
}

void sleep(const Wait& wait) {
    fibers[current].wait = wait;
    yield();
}
void wake(int fiber) {
    now.ready.set(now.rank_of[fiber]);
}
void spin(const Wait& wait) {
    now.spinning.push_back(current);
    sleep(wait);
}

void fail(const std::string& text) {
    const std::string thread = current < 0 ? "" : ", thread " + std::to_string(thread_of(current));
    now.fault = "block " + text_of(now.block[current < 0 ? 0 : rank_of(current)].index) + thread + ": " + text;
    _longjmp(scheduler, 1);
}

bool sync_block(const char* what, bool vote) {
    BlockBarrier& block = my_block().barrier;
    bool& votes = block.votes[block.generation % 2];
    votes = votes || vote;
    release(block.clock);
    wait_in(block, what, __builtin_return_address(0));
    return votes;
}

int cluster_index() {
    return static_cast<int>(my_block().index.x) / now.blocks;
}

void arrive_in_cluster() {
    if (fibers[current].arrived_in_cluster != kNever) fail("barrier.cluster.arrive without a wait since the last one");
    fibers[current].arrived_in_cluster = now.cluster.generation;
    ++now.cluster.arrived;
    release(now.cluster.clock);
    complete_cluster_if_all_arrived();
}
void wait_for_cluster() {
    const unsigned arrived = std::exchange(fibers[current].arrived_in_cluster, kNever);
    if (arrived == kNever) fail("barrier.cluster.wait without an arrive");
    if (now.cluster.generation != arrived) return acquire(now.cluster.over);
    fibers[current].arrived_in_cluster = arrived;  // while it waits
    now.cluster.waiting.push_back(current);
    sleep({"barrier.cluster", nullptr, nullptr, __builtin_return_address(0)});
    fibers[current].arrived_in_cluster = kNever;
    acquire(now.cluster.over);
}
void sync_cluster() {
    arrive_in_cluster();
    wait_for_cluster();
}

const Words& sync_warp(const char* what, std::uint64_t word) {
    WarpBarrier& warp = my_warp();
    Words& words = warp.words[warp.generation % 2];
    words[lane()] = word;
    wait_in(warp, what, __builtin_return_address(0));
    return words;
}

void sync_warp_then(const char* what, std::uint64_t word, void (*action)(const Words&), Place place) {
    WarpBarrier& warp = my_warp();
    warp.words[warp.generation % 2][lane()] = word;
    warp.action = action;
    wait_in(warp, what, place);
}

int lane() {
    return thread_of(current) % kLanes;
}
int lanes_of_warp() {
    return my_warp().members;
}

void copy_later(void* to, const void* from, unsigned bytes) {
    std::memset(to, kUnwritten, bytes);
    fibers[current].copies.back().push_back({static_cast<char*>(to), static_cast<const char*>(from), bytes});
}
void close_group_of_copies() {
    fibers[current].copies.emplace_back();
}
void wait_for_copies(int most_groups_in_flight) {
    auto& copies = fibers[current].copies;
    for (; static_cast<int>(copies.size()) > most_groups_in_flight + 1; copies.pop_front())
        for (const Copy& copy : copies.front()) {
            if (copy.from != nullptr)
                std::memcpy(copy.to, copy.from, copy.bytes);
            else
                std::memset(copy.to, 0, copy.bytes);
            note_store(copy.to, copy.bytes);
        }
}

void* dynamic_shared(std::size_t alignment) {
    alignment = std::max(alignment, kAlignment);
    if (now.shared_alignment != 0 && now.shared_alignment != alignment) fail("dynamic shared memory has two alignments");
    now.shared_alignment = alignment;
    return dynamic_of(my_block());
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
    Block& block = my_block();
    for (const Variable& variable : block.variables)
        if (variable.key == key) return variable.memory;
    char* const memory = block.arena + up_to(block.static_bytes, alignment);
    block.static_bytes = memory + bytes - block.arena;
    if (block.static_bytes + now.shared_bytes > kSharedBytes) fail("more shared memory than a block has");
    block.static_bytes += 16;  // a gap that must stay unwritten
    block.variables.push_back({key, memory, bytes});
    return memory;
}

unsigned rank_in_cluster() {
    return static_cast<unsigned>(rank_of(current));
}
unsigned blocks_of_cluster() {
    return static_cast<unsigned>(now.blocks);
}

std::string text_of(const uint3& at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}
std::string text_of_shared(unsigned address) {
    const Block& block = now.block[address / kArenaPitch % kMostBlocks];
    const auto before = static_cast<char*>(shared_pointer(address)) - dynamic_of(block);
    const std::string where = before < 0 ? "static shared memory + " + std::to_string(address % kArenaPitch)
                                         : "dynamic shared memory + " + std::to_string(before);
    return now.blocks == 1 ? where : where + " of block " + text_of(block.index);
}

bool is_shared(const void* pointer) {
    return is_in_arenas(pointer);
}
unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const char*>(pointer) - arenas);
}
void* shared_pointer(unsigned address) {
    return arenas + static_cast<int>(address);
}
unsigned address_in_block(unsigned address, unsigned rank) {
    if (rank >= static_cast<unsigned>(now.blocks)) fail("an address in a block outside of the cluster");
    return static_cast<unsigned>(address % kArenaPitch + rank * kArenaPitch);
}
void* pointer_for_store(unsigned address) {
    const Block& block = now.block[address / kArenaPitch];
    if (&block != &my_block()) {
        if (block.living == 0) fail("a store into the shared memory of a block that has returned");
        if (now.cluster.generation == 0) fail("a store into the shared memory of a block that may not have begun");
    }
    return shared_pointer(address);
}

void add_kernel(const std::string& kernel, const std::string& configuration, Run run) {
    kernels()[kernel + configuration] = run;
}

void launch(const std::string& kernel, const std::string& configuration, const Shape& shape, const void* args) {
    const std::string name = kernel + configuration;
    if (load_kernel != nullptr && !kernels().contains(name)) load_kernel(kernel.c_str(), configuration.c_str());
    const auto found = kernels().find(name);
    const auto [x, y, z] = shape.grid;
    if (found == kernels().end()) throw std::runtime_error(name + ": no such kernel");
    if (x == 0 || y == 0 || z == 0) throw std::runtime_error(name + ": the grid is empty");
    if (shape.threads == 0 || shape.threads > kMostThreads)
        throw std::runtime_error(name + ": a block of that size cannot run");
    if (shape.shared_bytes > kSharedBytes) throw std::runtime_error(name + ": more shared memory than a block has");
    if (shape.cluster == 0 || shape.cluster > kMostBlocks || x % shape.cluster != 0)
        throw std::runtime_error(name + ": a cluster of that size cannot run");
    launched.push_back({name, std::size_t{x} * y * z});
    now.run = found->second;
    now.args = args;
    now.shared_bytes = shape.shared_bytes;
    now.shared_alignment = 0;
    now.fences = 0;
    reset_global_stores();
    now.threads = static_cast<int>(shape.threads);
    now.blocks = static_cast<int>(shape.cluster);
    now.fault.clear();
    grid_size = {x, y, z};
    block_size = {shape.threads, 1, 1};
    const Signals signals;
    for (uint3 first{0, 0, 0}; first.z < z; ++first.z)
        for (first.y = 0; first.y < y; ++first.y)
            for (first.x = 0; first.x < x; first.x += shape.cluster) {
                run_cluster(first);
                for (const Block* block = now.block; block < now.block + now.blocks && now.fault.empty(); ++block)
                    if (wrote_outside(*block))
                        now.fault = "block " + text_of(block->index) + ", wrote to shared memory outside of its variables";
                if (!now.fault.empty()) throw std::runtime_error(name + ": " + now.fault);
            }
}

}  // namespace emulator

// ---- For Python

// `load` loads the library of a kernel at its first launch; that library calls add_kernel.
extern "C" void emulator_set_loader(void (*load)(const char* kernel, const char* configuration)) {
    emulator::load_kernel = load;
}
extern "C" void emulator_schedule(unsigned seed, bool reversed) {
    emulator::schedule = {seed, reversed};
}
// The number of launches so far; names and configurations of the launches from `first` on, one per line.
extern "C" std::size_t emulator_launches() {
    return emulator::launched.size();
}
extern "C" const char* emulator_launched(std::size_t first) {
    static std::string text;
    std::set<std::string> names;
    for (std::size_t i = first; i < emulator::launched.size(); ++i) names.insert(emulator::launched[i].name);
    text.clear();
    for (const std::string& name : names) text += name + "\n";
    return text.c_str();
}
// The number of blocks in the launches from `first` on.
extern "C" std::size_t emulator_blocks(std::size_t first) {
    std::size_t blocks = 0;
    for (std::size_t i = first; i < emulator::launched.size(); ++i) blocks += emulator::launched[i].blocks;
    return blocks;
}
// Launches a kernel without an operator; returns its error, or an empty string.
extern "C" const char* emulator_launch_grid(const char* kernel, const char* configuration, const unsigned* blocks,
                                            unsigned threads, unsigned shared_bytes, unsigned cluster, const void* args) {
    static std::string text;
    text.clear();
    try {
        emulator::launch(kernel, configuration, {{blocks[0], blocks[1], blocks[2]}, threads, shared_bytes, cluster}, args);
    } catch (const std::exception& error) {
        text = error.what();
    }
    return text.c_str();
}
extern "C" const char* emulator_launch(const char* kernel, const char* configuration, unsigned blocks, unsigned threads,
                                       unsigned shared_bytes, unsigned cluster, const void* args) {
    const unsigned grid[3] = {blocks, 1, 1};
    return emulator_launch_grid(kernel, configuration, grid, threads, shared_bytes, cluster, args);
}
