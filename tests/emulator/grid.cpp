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

constexpr int kMostThreads = 1024;
constexpr std::size_t kPage = 4096, kStackBytes = 256 << 10, kSharedBytes = 227 << 10, kArenaBytes = 256 << 10;
constexpr unsigned char kUnwritten = 0xff;  // four or two of them are NaN

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
struct WarpMeeting : Meeting {
    Words words[2];
};
struct Variable {
    const void* key;
    char* memory;
    std::size_t bytes;
};

struct Launch {
    Run run;
    const void* args;
    std::size_t shared_bytes, static_bytes;
    int living;
    BlockMeeting block;
    WarpMeeting warps[kMostThreads / kLanes];
    std::vector<Variable> variables;  // static shared memory
    std::vector<int> thread_at, rank_of;
    std::bitset<kMostThreads> ready;  // by rank
    std::string fault;
} now;

Fiber fibers[kMostThreads];
int current = -1;  // thread
jmp_buf scheduler;
char* const arena = guarded(kArenaBytes);

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
    for (const int thread : meeting.waiting) now.ready.set(now.rank_of[thread]);
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

template <class M>
void let_go_if_complete(M& meeting) {
    if (!meeting.waiting.empty() && static_cast<int>(meeting.waiting.size()) == meeting.members) let_go(meeting);
}

template <class M>
void wait_in(M& meeting, const char* what) {
    if (!meeting.waiting.empty()) {
        const int other = meeting.waiting.front();
        if (std::string_view(fibers[other].waits_for) != what)
            fail(std::string(what) + ", where thread " + std::to_string(other) + " waits in " + fibers[other].waits_for);
    }
    fibers[current].waits_for = what;
    meeting.waiting.push_back(current);
    let_go_if_complete(meeting);
    leave();
}

void fiber() {
    now.run(now.args);
    fibers[current].waits_for = nullptr;
    WarpMeeting& warp = now.warps[current / kLanes];
    --now.living;
    --now.block.members;
    --warp.members;
    let_go_if_complete(now.block);
    let_go_if_complete(warp);
    _longjmp(scheduler, 1);
}

void resume(int thread) {
    current = thread;
    thread_index = {static_cast<unsigned>(thread), 0, 0};
    Fiber& next = fibers[thread];
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
void draw_order(int threads) {
    std::seed_seq seeds{schedule.seed, block_index.x, block_index.y, block_index.z};
    std::mt19937 random(seeds);
    now.thread_at.resize(threads);
    std::iota(now.thread_at.begin(), now.thread_at.end(), 0);
    std::ranges::shuffle(now.thread_at, random);
    if (random() % 2 == 0) {
        std::vector<unsigned> place((threads + kLanes - 1) / kLanes);
        std::ranges::generate(place, random);
        std::ranges::stable_sort(now.thread_at, {}, [&](int thread) { return place[thread / kLanes]; });
    }
    if (schedule.reversed) std::ranges::reverse(now.thread_at);
    now.rank_of.resize(threads);
    for (int rank = 0; rank < threads; ++rank) now.rank_of[now.thread_at[rank]] = rank;
}

std::string deadlock(int threads) {
    std::string text = "a deadlock:";
    for (int thread = 0; thread < threads; ++thread)
        if (thread == 0 || fibers[thread].waits_for != fibers[thread - 1].waits_for)
            text += " from thread " + std::to_string(thread) + " on " +
                    (fibers[thread].waits_for ? fibers[thread].waits_for : "returned");
    return text;
}

void run_threads(int threads) {
    while (now.living > 0 && now.fault.empty()) {
        const std::size_t rank = now.ready._Find_first();
        if (rank == now.ready.size()) {
            now.fault = deadlock(threads);
            return;
        }
        now.ready.reset(rank);
        if (_setjmp(scheduler) == 0) resume(now.thread_at[rank]);
    }
}

void run_block(int threads) {
    std::memset(arena, kUnwritten, kArenaBytes);
    now.variables.clear();
    now.static_bytes = 0;
    now.living = now.block.members = threads;
    now.block = {{{}, threads, 0}, {false, false}};
    for (int warp = 0; warp * kLanes < threads; ++warp) {
        now.warps[warp] = {{{}, std::min(kLanes, threads - warp * kLanes), 0}, {}};
        for (Words& words : now.warps[warp].words) words.fill(~std::uint64_t{0});
    }
    for (int thread = 0; thread < threads; ++thread) {
        Fiber& each = fibers[thread];
        each.started = false;
        each.waits_for = nullptr;
        each.copies.assign(1, {});
    }
    draw_order(threads);
    now.ready.reset();
    for (int rank = 0; rank < threads; ++rank) now.ready.set(rank);
    run_threads(threads);
    current = -1;
}

// Whether anything was written to the arena beside the block's variables.
bool wrote_outside() {
    const auto is_written = [](char byte) { return static_cast<unsigned char>(byte) != kUnwritten; };
    const char* at = arena;
    for (const Variable& variable : now.variables) {  // in the order of their addresses
        if (std::any_of(at, static_cast<const char*>(variable.memory), is_written)) return true;
        at = variable.memory + variable.bytes;
    }
    const char* const dynamic = static_cast<const char*>(dynamic_shared());
    return std::any_of(at, dynamic, is_written) ||
           std::any_of(dynamic + now.shared_bytes, static_cast<const char*>(arena) + kArenaBytes, is_written);
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
    now.fault = "thread " + std::to_string(current) + ": " + text;
    _longjmp(scheduler, 1);
}

bool meet_block(const char* what, bool vote) {
    BlockMeeting& block = now.block;
    bool& votes = block.votes[block.generation % 2];
    votes = votes || vote;
    wait_in(block, what);
    return votes;
}

const Words& meet_warp(const char* what, std::uint64_t word) {
    WarpMeeting& warp = now.warps[current / kLanes];
    Words& words = warp.words[warp.generation % 2];
    words[lane()] = word;
    wait_in(warp, what);
    return words;
}

int lane() {
    return current % kLanes;
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

// At the end of the arena, behind which nothing can be touched.
void* dynamic_shared() {
    return arena + kArenaBytes - up_to(now.shared_bytes, 128);
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
    for (const Variable& variable : now.variables)
        if (variable.key == key) return variable.memory;
    char* const memory = arena + up_to(now.static_bytes, alignment);
    now.static_bytes = memory + bytes - arena;
    if (now.static_bytes + now.shared_bytes > kSharedBytes) fail("more shared memory than a block has");
    now.static_bytes += 16;  // a gap in which nothing may be written
    now.variables.push_back({key, memory, bytes});
    return memory;
}

bool is_shared(const void* pointer) {
    return pointer >= arena && pointer < arena + kArenaBytes;
}
unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const char*>(pointer) - arena);
}
void* shared_pointer(unsigned address) {
    return arena + static_cast<int>(address);
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
    launched.push_back(name);
    now.run = found->second;
    now.args = args;
    now.shared_bytes = shape.shared_bytes;
    now.fault.clear();
    grid_size = {x, y, z};
    block_size = {shape.threads, 1, 1};
    const Signals signals;
    for (block_index.z = 0; block_index.z < z; ++block_index.z)
        for (block_index.y = 0; block_index.y < y; ++block_index.y)
            for (block_index.x = 0; block_index.x < x; ++block_index.x) {
                run_block(static_cast<int>(shape.threads));
                if (now.fault.empty() && wrote_outside()) now.fault = "wrote to shared memory outside of its variables";
                if (!now.fault.empty()) throw std::runtime_error(name + ": block " + text_of(block_index) + ", " + now.fault);
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
                                                                              const void* args) {
    static std::string text;
    text.clear();
    try {
        emulator::launch(kernel, "", {{blocks, 1, 1}, threads, shared_bytes}, args);
    } catch (const std::exception& error) {
        text = error.what();
    }
    return text.c_str();
}
