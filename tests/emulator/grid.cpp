// Fibers and their turns, barriers, shared memory, and what becomes of a fault.
#include "grid.hpp"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <bitset>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

namespace emulator {

uint3 thread_index, block_index, grid_size, block_size;

namespace {

constexpr int kMostThreads = 1024, kMostBlocks = 8;  // of a block, of a cluster
constexpr int kMostFibers = kMostThreads * kMostBlocks;
constexpr std::size_t kPage = 4096, kStackBytes = 256 << 10, kSharedBytes = 227 << 10, kArenaBytes = 256 << 10;
constexpr std::size_t kArenaPitch = kArenaBytes + kPage;  // nobody can touch what lies between two
constexpr unsigned char kUnwritten = 0xff;                // four or two of them are NaN

std::size_t up_to(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

// Memory between two pages that nothing can touch.
char* guarded(std::size_t bytes) {
    void* const all = mmap(nullptr, bytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    char* const memory = static_cast<char*>(all) + kPage;
    mprotect(memory, bytes, PROT_READ | PROT_WRITE);
    return memory;
}

// ---- The state of a launch

struct Copy {
    char* to;
    const char* from;
};
struct Fiber {
    char* stack = nullptr;
    bool started = false;
    jmp_buf at;
    const char* waits_for = nullptr;
    bool has_arrived = false;  // in the cluster, in this generation of its meeting
    unsigned arrived_in = 0;
    std::deque<std::vector<Copy>> copies;  // by group; the last is open
};
struct Meeting {
    std::vector<int> waiting;
    int members = 0;  // threads that have not returned
    unsigned generation = 0;
};
struct BlockMeeting : Meeting {
    bool votes[2];
};
struct ClusterMeeting : Meeting {
    int arrived = 0;
};
struct WarpMeeting : Meeting {
    Words words[2];
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
    std::size_t shared_bytes;
    int threads, blocks;  // of a block, of a cluster
    Block block[kMostBlocks];
    ClusterMeeting cluster;
    WarpMeeting warps[kMostFibers / kLanes];
    std::vector<int> fiber_at, rank_of;
    std::bitset<kMostFibers> ready;  // by rank
    std::string fault;
} now;

Fiber fibers[kMostFibers];
int current = -1;  // fiber
jmp_buf scheduler;
char* const arenas = [] {
    char* const all = guarded(kMostBlocks * kArenaPitch);
    for (int block = 0; block < kMostBlocks; ++block) mprotect(all + (block + 1) * kArenaPitch - kPage, kPage, PROT_NONE);
    return all;
}();

int rank_of(int fiber) {
    return fiber / now.threads;
}
int thread_of(int fiber) {
    return fiber % now.threads;
}
Block& my_block() {
    return now.block[rank_of(current)];
}
WarpMeeting& my_warp() {
    return now.warps[rank_of(current) * (kMostThreads / kLanes) + thread_of(current) / kLanes];
}

struct Schedule {
    unsigned seed = 0;
    bool reversed = false;
} schedule;

std::map<std::string, Run>& kernels() {
    static std::map<std::string, Run> all;
    return all;
}
std::vector<std::string> launched;

std::string text_of(const uint3& at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) + ")";
}

// ---- Threads

void leave() {
    if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

void let_go(Meeting& meeting) {
    for (const int fiber : meeting.waiting) now.ready.set(now.rank_of[fiber]);
    meeting.waiting.clear();
    ++meeting.generation;
}
void let_go(WarpMeeting& warp) {
    let_go(static_cast<Meeting&>(warp));
    warp.words[warp.generation % 2].fill(~std::uint64_t{0});  // lanes that have returned say NaN
}
void let_go(BlockMeeting& block) {
    let_go(static_cast<Meeting&>(block));
    block.votes[block.generation % 2] = false;
}
void let_go(ClusterMeeting& cluster) {
    cluster.arrived = 0;
    let_go(static_cast<Meeting&>(cluster));
}

template <class M>
void let_go_if_complete(M& meeting) {
    if (!meeting.waiting.empty() && static_cast<int>(meeting.waiting.size()) == meeting.members) let_go(meeting);
}

void let_go_if_complete(ClusterMeeting& cluster) {
    if (cluster.arrived > 0 && cluster.arrived == cluster.members) let_go(cluster);
}

template <class M>
void wait_in(M& meeting, const char* what) {
    if (!meeting.waiting.empty()) {
        const int other = meeting.waiting.front();
        if (std::string_view(fibers[other].waits_for) != what)
            fail(std::string(what) + ", where thread " + std::to_string(thread_of(other)) + " waits in " +
                 fibers[other].waits_for);
    }
    fibers[current].waits_for = what;
    meeting.waiting.push_back(current);
    let_go_if_complete(meeting);
    leave();
}

void fiber() {
    now.run(now.args);
    fibers[current].waits_for = nullptr;
    WarpMeeting& warp = my_warp();
    Block& block = my_block();
    --block.living;
    --block.meeting.members;
    --warp.members;
    --now.cluster.members;
    if (fibers[current].has_arrived && fibers[current].arrived_in == now.cluster.generation) --now.cluster.arrived;
    let_go_if_complete(block.meeting);
    let_go_if_complete(warp);
    let_go_if_complete(now.cluster);
    _longjmp(scheduler, 1);
}

void resume(int fiber_number) {
    current = fiber_number;
    thread_index = {static_cast<unsigned>(thread_of(current)), 0, 0};
    block_index = my_block().index;
    Fiber& next = fibers[current];
    if (next.started) _longjmp(next.at, 1);
    next.started = true;
    if (next.stack == nullptr) next.stack = guarded(kStackBytes);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = next.stack;
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, fiber, 0);
    setcontext(&context);
}

// Threads in the order in which they go on where several could: any, or warp by warp.
void draw_order() {
    const uint3 first = now.block[0].index;
    const int fibers_in_all = now.threads * now.blocks;
    std::seed_seq seeds{schedule.seed, first.x, first.y, first.z};
    std::mt19937 random(seeds);
    now.fiber_at.resize(fibers_in_all);
    std::iota(now.fiber_at.begin(), now.fiber_at.end(), 0);
    std::ranges::shuffle(now.fiber_at, random);
    if (random() % 2 == 0) {
        std::vector<unsigned> place((fibers_in_all + kLanes - 1) / kLanes);
        std::ranges::generate(place, random);
        std::ranges::stable_sort(now.fiber_at, {}, [&](int each) { return place[each / kLanes]; });
    }
    if (schedule.reversed) std::ranges::reverse(now.fiber_at);
    now.rank_of.resize(fibers_in_all);
    for (int rank = 0; rank < fibers_in_all; ++rank) now.rank_of[now.fiber_at[rank]] = rank;
}

std::string deadlock() {
    std::string text = "a deadlock:";
    for (int each = 0; each < now.threads * now.blocks; ++each)
        if (thread_of(each) == 0 || fibers[each].waits_for != fibers[each - 1].waits_for)
            text += " from thread " + std::to_string(thread_of(each)) + " on " +
                    (fibers[each].waits_for ? fibers[each].waits_for : "returned");
    return text;
}

void run_fibers() {
    while (now.cluster.members > 0 && now.fault.empty()) {
        const std::size_t rank = now.ready._Find_first();
        if (rank == now.ready.size()) {
            now.fault = "block " + text_of(now.block[0].index) + ", " + deadlock();
            return;
        }
        now.ready.reset(rank);
        if (_setjmp(scheduler) == 0) resume(now.fiber_at[rank]);
    }
}

void prepare_block(int rank, const uint3& index) {
    Block& block = now.block[rank];
    block = {index, arenas + rank * kArenaPitch, now.threads, {{{}, now.threads, 0}, {false, false}}, {}, 0};
    std::memset(block.arena, kUnwritten, kArenaBytes);
    for (int warp = 0; warp * kLanes < now.threads; ++warp) {
        WarpMeeting& meeting = now.warps[rank * (kMostThreads / kLanes) + warp];
        meeting = {{{}, std::min(kLanes, now.threads - warp * kLanes), 0}, {}};
        for (Words& words : meeting.words) words.fill(~std::uint64_t{0});
    }
}

void run_cluster(const uint3& first) {
    const int fibers_in_all = now.threads * now.blocks;
    for (int rank = 0; rank < now.blocks; ++rank)
        prepare_block(rank, {first.x + static_cast<unsigned>(rank), first.y, first.z});
    now.cluster = {{{}, fibers_in_all, 0}, 0};
    for (int each = 0; each < fibers_in_all; ++each) {
        fibers[each].started = false;
        fibers[each].waits_for = nullptr;
        fibers[each].has_arrived = false;
        fibers[each].copies.assign(1, {});
    }
    draw_order();
    now.ready.reset();
    for (int rank = 0; rank < fibers_in_all; ++rank) now.ready.set(rank);
    run_fibers();
    current = -1;
}

// The dynamic shared memory lies at the end of the arena, behind which nothing can be touched.
char* dynamic_of(const Block& block) {
    return block.arena + kArenaBytes - up_to(now.shared_bytes, 128);
}

// Whether anything was written to the block's arena beside its variables.
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

// ---- Faults of the CPU

std::string place_in_code([[maybe_unused]] void* context) {
#ifdef __x86_64__
    const auto at = reinterpret_cast<char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    Dl_info found;
    if (dladdr(at, &found) != 0 && found.dli_fbase != nullptr) {
        char text[32];
        std::snprintf(text, sizeof text, " at +0x%tx", at - static_cast<char*>(found.dli_fbase));
        return text;
    }
#endif
    return "";
}

void on_signal(int number, siginfo_t* info, void* context) {
    if (current < 0) {  // not of a kernel
        signal(number, SIG_DFL);
        return;
    }
    char address[32];
    std::snprintf(address, sizeof address, "%p", info->si_addr);
    const std::string what = number == SIGFPE ? "a division by zero" : std::string("memory of nobody, ") + address;
    fail(what + place_in_code(context));
}

// Takes signals while it lives.
class Signals {
  public:
    Signals() {
        static char* const stack = guarded(kStackBytes);
        const stack_t ours{stack, 0, kStackBytes};
        sigaltstack(&ours, &stack_);
        struct sigaction action {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        for (std::size_t i = 0; i < std::size(kNumbers); ++i) sigaction(kNumbers[i], &action, &before_[i]);
    }
    ~Signals() {
        for (std::size_t i = 0; i < std::size(kNumbers); ++i) sigaction(kNumbers[i], &before_[i], nullptr);
        sigaltstack(&stack_, nullptr);
    }

  private:
    static constexpr int kNumbers[] = {SIGSEGV, SIGBUS, SIGFPE};
    struct sigaction before_[std::size(kNumbers)];
    stack_t stack_;
};

}  // namespace

void fail(const std::string& text) {
    now.fault = "block " + text_of(my_block().index) + ", thread " + std::to_string(thread_of(current)) + ": " + text;
    _longjmp(scheduler, 1);
}

bool meet_block(const char* what, bool vote) {
    BlockMeeting& block = my_block().meeting;
    bool& votes = block.votes[block.generation % 2];
    votes = votes || vote;
    wait_in(block, what);
    return votes;
}

int cluster_index() {
    return static_cast<int>(my_block().index.x) / now.blocks;
}
int rank_in_cluster() {
    return rank_of(current);
}

void arrive_in_cluster() {
    Fiber& mine = fibers[current];
    if (mine.has_arrived) fail("barrier.cluster.arrive, behind another without barrier.cluster.wait");
    mine.has_arrived = true;
    mine.arrived_in = now.cluster.generation;
    ++now.cluster.arrived;
    let_go_if_complete(now.cluster);
}
void wait_for_cluster(const char* what) {
    Fiber& mine = fibers[current];
    if (!mine.has_arrived) fail("barrier.cluster.wait without barrier.cluster.arrive");
    mine.has_arrived = false;
    if (mine.arrived_in != now.cluster.generation) return;
    mine.waits_for = what;
    now.cluster.waiting.push_back(current);
    leave();
}

const Words& meet_warp(const char* what, std::uint64_t word) {
    WarpMeeting& warp = my_warp();
    Words& words = warp.words[warp.generation % 2];
    words[lane()] = word;
    wait_in(warp, what);
    return words;
}

int lane() {
    return thread_of(current) % kLanes;
}

void copy_later(void* to, const void* from) {
    std::memset(to, kUnwritten, 16);
    fibers[current].copies.back().push_back({static_cast<char*>(to), static_cast<const char*>(from)});
}
void close_group_of_copies() {
    fibers[current].copies.emplace_back();
}
void wait_for_copies(int most_groups_in_flight) {
    auto& copies = fibers[current].copies;
    for (; static_cast<int>(copies.size()) > most_groups_in_flight + 1; copies.pop_front())
        for (const Copy& copy : copies.front()) {
            if (copy.from != nullptr)
                std::memcpy(copy.to, copy.from, 16);
            else
                std::memset(copy.to, 0, 16);
        }
}

void* dynamic_shared() {
    return dynamic_of(my_block());
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
    Block& block = my_block();
    for (const Variable& variable : block.variables)
        if (variable.key == key) return variable.memory;
    char* const memory = block.arena + up_to(block.static_bytes, alignment);
    block.static_bytes = memory + bytes - block.arena;
    if (block.static_bytes + now.shared_bytes > kSharedBytes) fail("more shared memory than a block has");
    block.static_bytes += 16;  // a gap in which nothing may be written
    block.variables.push_back({key, memory, bytes});
    return memory;
}

bool is_shared(const void* pointer) {
    return pointer >= arenas && pointer < arenas + kMostBlocks * kArenaPitch;
}
unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const char*>(pointer) - arenas);
}
void* shared_pointer(unsigned address) {
    return arenas + static_cast<int>(address);
}
unsigned address_in_block(unsigned address, unsigned rank) {
    if (rank >= static_cast<unsigned>(now.blocks)) fail("an address in a block that the cluster has not");
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
    const auto found = kernels().find(name);
    const auto [x, y, z] = shape.grid;
    if (found == kernels().end())
        throw std::runtime_error(name + ": no such kernel is in the emulator; the registry has it not");
    if (x == 0 || y == 0 || z == 0) throw std::runtime_error(name + ": the grid is empty");
    if (shape.threads == 0 || shape.threads > kMostThreads)
        throw std::runtime_error(name + ": a block of that size cannot run");
    if (shape.shared_bytes > kSharedBytes) throw std::runtime_error(name + ": more shared memory than a block has");
    if (shape.cluster == 0 || shape.cluster > kMostBlocks || x % shape.cluster != 0)
        throw std::runtime_error(name + ": a cluster of that size cannot run");
    launched.push_back(name);
    now.run = found->second;
    now.args = args;
    now.shared_bytes = shape.shared_bytes;
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

// ---- What -fsanitize finds in kernels: its handlers begin with the place in the source

namespace {

struct Place {
    const char* file;
    unsigned line, column;
};
[[noreturn]] void found(const Place& place, const char* what) {
    emulator::fail(std::string(place.file) + ":" + std::to_string(place.line) + ": " + what);
}

}  // namespace

#define GDN_HANDLER(name, what)                                                      \
    extern "C" [[noreturn]] void __ubsan_handle_##name##_abort(const Place* place) { \
        found(*place, what);                                                         \
    }
GDN_HANDLER(type_mismatch_v1, "a misaligned address")
GDN_HANDLER(out_of_bounds, "an index outside of its array")
GDN_HANDLER(shift_out_of_bounds, "a shift by more bits than there are")
GDN_HANDLER(add_overflow, "an integer overflows")
GDN_HANDLER(sub_overflow, "an integer overflows")
GDN_HANDLER(mul_overflow, "an integer overflows")
GDN_HANDLER(negate_overflow, "an integer overflows")
GDN_HANDLER(divrem_overflow, "a division overflows")

// ---- For Python

extern "C" __attribute__((visibility("default"))) void emulator_schedule(unsigned seed, bool reversed) {
    emulator::schedule = {seed, reversed};
}
// How often a kernel was launched, and names with configurations from the first of these launches on, a line each.
extern "C" __attribute__((visibility("default"))) std::size_t emulator_launches() {
    return emulator::launched.size();
}
extern "C" __attribute__((visibility("default"))) const char* emulator_launched(std::size_t first) {
    static std::string text;
    const auto& all = emulator::launched;
    text.clear();
    for (const std::string& name : std::set(all.begin() + static_cast<std::ptrdiff_t>(first), all.end())) text += name + "\n";
    return text.c_str();
}
// Launches a kernel alone; returns what it did wrong.
extern "C" __attribute__((visibility("default"))) const char* emulator_launch(const char* kernel, unsigned blocks,
                                                                              unsigned threads, unsigned shared_bytes,
                                                                              unsigned cluster, const void* args) {
    static std::string text;
    text.clear();
    try {
        emulator::launch(kernel, "", {{blocks, 1, 1}, threads, shared_bytes, cluster}, args);
    } catch (const std::exception& error) {
        text = error.what();
    }
    return text.c_str();
}
