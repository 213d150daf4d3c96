#include "accesses.hpp"

#include <sys/mman.h>

#include <new>
#include <unordered_map>

#include "faults.hpp"

namespace emulator {

const std::vector<Registers>* registers_in_flight;

namespace {

struct Vector {
    const char* what;  // name of the last asynchronous instruction
    Place place;
    unsigned short reads, writes;  // in flight
};
// The last store to a word.
struct Store {
    Event event;
    unsigned fences;  // Launch::fences + 1 for a store by a thread, 0 for none or one by an asynchronous instruction
    unsigned short fiber;
    unsigned char bytes;  // one bit per byte
    Place place;
};
constexpr std::size_t kWindow = kMostBlocks * kArenaPitch, kWords = kWindow / 4;
Vector vectors[kWindow / kVectorBytes];
Store stores[kWords];
bool touched[kMostBlocks];

// The time of each warp's last read of a word, [word][warp]; a block has up to 32 warps.
unsigned* const reads = [] {
    void* const all = mmap(nullptr, kWords * kLanes * sizeof(unsigned), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) throw std::bad_alloc();
    return static_cast<unsigned*>(all);
}();
unsigned warps_of_block() {
    return (now.threads + kLanes - 1) / kLanes;
}

std::unordered_map<std::size_t, unsigned> global_stores;  // the time of the last store, by address / 16

void touch(std::size_t address) {
    touched[address / kArenaPitch] = true;
}

// Whether asynchronous instructions see a store: the thread that stored has fenced since, or all threads that issue have.
bool is_fenced(const Store& store, const Asynchronous& by) {
    if (store.fences == 0 || fibers[store.fiber].fenced >= store.fences) return true;
    for (int each = by.first; each <= by.last; ++each)
        if (fibers[each].fenced < store.fences) return false;
    return true;
}

std::string named(const Vector& vector) {
    return std::string(vector.what) + text_of(vector.place);
}

// An access to a word, by a thread or an asynchronous instruction.
struct Access {
    const char *what, *verb;
    Place place;

    std::string to(unsigned word) const { return std::string(what) + verb + text_of_shared(word * 4); }
};

[[noreturn]] void fail_without_fence(unsigned word, const Asynchronous& by) {
    fail_at(by.place, std::string(by.what) + " takes " + text_of_shared(word * 4) + ", which thread " +
                          std::to_string(thread_of(stores[word].fiber)) + " has stored" + text_of(stores[word].place) +
                          " without a fence.proxy.async since");
}
[[noreturn]] void fail_unordered_store(unsigned word, const Access& access) {
    const Store& store = stores[word];
    const std::string who = store.fences == 0 ? "an asynchronous copy" : "thread " + std::to_string(thread_of(store.fiber));
    fail_at(access.place,
            access.to(word) + ", which " + who + " has stored" + text_of(store.place) + ", and no barrier is between");
}
[[noreturn]] void fail_unordered_load(unsigned word, unsigned warp, const Access& access) {
    fail_at(access.place, access.to(word) + ", which the warp of thread " + std::to_string(warp * kLanes) +
                              " has read, and no barrier is between");
}

void check_load(unsigned word, const Access& access) {
    if (!is_known(stores[word].event)) fail_unordered_store(word, access);
}
void note_load(unsigned word, const Event& event) {
    const unsigned count = warps_of_block();
    reads[word * count + event.who % count] = event.time;
}
void check_store(unsigned word, unsigned char bytes, const Access& access) {
    if ((stores[word].bytes & bytes) != 0) check_load(word, access);
    const unsigned count = warps_of_block(), rank = word * 4 / kArenaPitch;
    const unsigned* const known = known_of_warps(static_cast<int>(rank));
    const unsigned* const read = reads + word * count;
    bool all = true;
    for (unsigned warp = 0; warp < count; ++warp) all &= read[warp] <= known[warp];
    if (all) return;
    for (unsigned warp = 0; warp < count; ++warp)
        if (!is_known({static_cast<unsigned short>(rank * count + warp), read[warp]})) fail_unordered_load(word, warp, access);
}

constexpr unsigned char kAllBytes = 0xf;

void note_shared(std::size_t address, std::size_t bytes, bool is_store, Place place) {
    const Access access{"", is_store ? "stores " : "loads ", place};
    for (std::size_t at = address / kVectorBytes; at <= (address + bytes - 1) / kVectorBytes; ++at) {
        const Vector& vector = vectors[at];
        if (vector.writes > 0)
            fail_at(place, std::string(access.verb) + "what has not arrived yet, " +
                               text_of_shared(static_cast<unsigned>(address)) + ": " + named(vector));
        if (is_store && vector.reads > 0)
            fail_at(place,
                    "stores what is still read, " + text_of_shared(static_cast<unsigned>(address)) + ": " + named(vector));
    }
    touch(address);
    const Event event = event_of_warp();
    for (std::size_t word = address / 4; word <= (address + bytes - 1) / 4; ++word) {
        if (!is_store) {
            check_load(static_cast<unsigned>(word), access);
            if (rank_of(current) == static_cast<int>(address / kArenaPitch)) note_load(static_cast<unsigned>(word), event);
            continue;
        }
        const auto mask = static_cast<unsigned char>(bytes >= 4 ? kAllBytes : ((1u << bytes) - 1) << address % 4);
        if (bytes > 1) check_store(static_cast<unsigned>(word), mask, access);  // threads may set flags in one word
        stores[word] = {event, now.fences + 1, static_cast<unsigned short>(current), mask, place};
    }
}

void note_registers(const char* begin, std::size_t bytes, bool is_store, Place place) {
    for (const Registers& registers : *registers_in_flight)
        if (begin + bytes > registers.begin && begin < registers.end)
            fail_at(place, std::string(is_store ? "writes" : "reads") + " registers of a wgmma in flight, which has begun" +
                               text_of(registers.place) + ", without a wait");
}

void note(const void* pointer, std::size_t bytes, bool is_store, Place place) {
    if (current < 0) return;  // host code
    const char* const begin = static_cast<const char*>(pointer);
    if (is_in_arenas(begin))
        note_shared(static_cast<std::size_t>(begin - arenas), bytes, is_store, place);
    else if (is_in_stacks(begin)) {
        if (!registers_in_flight->empty()) note_registers(begin, bytes, is_store, place);
    } else if (is_store) {
        const std::size_t first = reinterpret_cast<std::size_t>(begin) / kVectorBytes;
        for (std::size_t at = first; at <= (reinterpret_cast<std::size_t>(begin) + bytes - 1) / kVectorBytes; ++at)
            global_stores[at] = now.fences + 1;
    }
}

}  // namespace

void begin_read(unsigned address, const Asynchronous& by) {
    Vector& vector = vectors[address / kVectorBytes];
    touch(address);
    if (vector.writes > 0)
        fail_at(by.place,
                std::string(by.what) + " takes what has not arrived yet, " + text_of_shared(address) + ": " + named(vector));
    for (unsigned word = address / 4; word < (address + kVectorBytes) / 4; ++word) {
        check_load(word, {by.what, " takes ", by.place});
        if (!is_fenced(stores[word], by)) fail_without_fence(word, by);
    }
    vector = {by.what, by.place, static_cast<unsigned short>(vector.reads + 1), 0};
}
void end_read(unsigned address) {
    --vectors[address / kVectorBytes].reads;
    const Event event = event_of_warp();
    for (unsigned word = address / 4; word < (address + kVectorBytes) / 4; ++word) note_load(word, event);
}
void begin_write(unsigned address, const Asynchronous& by) {
    Vector& vector = vectors[address / kVectorBytes];
    touch(address);
    if (vector.reads > 0 || vector.writes > 0)
        fail_at(by.place,
                std::string(by.what) + " overwrites what is still in use, " + text_of_shared(address) + ": " + named(vector));
    for (unsigned word = address / 4; word < (address + kVectorBytes) / 4; ++word) {
        check_store(word, kAllBytes, {by.what, " overwrites ", by.place});
        if (!is_fenced(stores[word], by)) fail_without_fence(word, by);
    }
    vector = {by.what, by.place, 0, 1};
}
void end_write(unsigned address, const Event& event) {
    Vector& vector = vectors[address / kVectorBytes];
    vector.writes = 0;
    for (unsigned word = address / 4; word < (address + kVectorBytes) / 4; ++word)
        stores[word] = {event, 0, 0, kAllBytes, vector.place};
}

void note_store(const void* to, std::size_t bytes) {
    if (touched[rank_of(current)]) note(to, bytes, true, nullptr);
}

void check_global_read(const void* from, std::size_t bytes, const Asynchronous& by) {
    if (global_stores.empty() || bytes == 0) return;
    const std::size_t first = reinterpret_cast<std::size_t>(from);
    for (std::size_t at = first / kVectorBytes; at <= (first + bytes - 1) / kVectorBytes; ++at)
        if (const auto found = global_stores.find(at); found != global_stores.end())
            for (int each = by.first; each <= by.last; ++each)
                if (fibers[each].fenced_global < found->second)
                    fail_at(by.place, std::string(by.what) +
                                          " reads global memory that this launch has stored, without "
                                          "fence.proxy.async between");
}

void reset_accesses(int rank) {
    if (!touched[rank]) return;
    touched[rank] = false;
    std::fill_n(vectors + rank * (kArenaPitch / kVectorBytes), kArenaBytes / kVectorBytes, Vector{});
    std::fill_n(stores + rank * (kArenaPitch / 4), kArenaBytes / 4, Store{});
}
void reset_global_stores() {
    global_stores.clear();
}

}  // namespace emulator

// ---- Functions that -fsanitize=thread calls

namespace emulator {

// Skips the common case: a thread's own variables.
static inline void note_unless_own(const void* at, std::size_t bytes, bool is_store, Place place) {
    if (!is_in_stacks(at) || !registers_in_flight->empty()) note(at, bytes, is_store, place);
}

}  // namespace emulator

#define GDN_NOTE(name, bytes, is_store)                                              \
    extern "C" void __tsan_##name(void* at) {                                        \
        emulator::note_unless_own(at, bytes, is_store, __builtin_return_address(0)); \
    }
#define GDN_NOTES(bytes)                          \
    GDN_NOTE(read##bytes, bytes, false)           \
    GDN_NOTE(write##bytes, bytes, true)           \
    GDN_NOTE(unaligned_read##bytes, bytes, false) \
    GDN_NOTE(unaligned_write##bytes, bytes, true)
GDN_NOTES(1)
GDN_NOTES(2)
GDN_NOTES(4)
GDN_NOTES(8)
GDN_NOTES(16)
extern "C" void __tsan_read_range(void* at, unsigned long bytes) {
    emulator::note_unless_own(at, bytes, false, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(void* at, unsigned long bytes) {
    emulator::note_unless_own(at, bytes, true, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
