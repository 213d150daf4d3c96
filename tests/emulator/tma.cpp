#include "tma.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "accesses.hpp"
#include "async.hpp"
#include "barriers.hpp"
#include "faults.hpp"
#include "state.hpp"
#include "tensor_map.hpp"

namespace emulator {
namespace {

using Bytes = std::vector<char>;

// ---- Global memory

// A box of a tensor, or contiguous bytes.
struct Global {
    EmulatedTensorMap map;
    int at[5];
    char* data;
    std::size_t bytes;
    bool is_box;

    // Calls visit(offset in the copy, address, bytes) for each row of the box, with a null address outside of the tensor.
    template <class Visit>
    void for_each_row(Visit&& visit) const {
        if (!is_box) return visit(std::size_t{0}, data, bytes);
        const std::size_t row_bytes = static_cast<std::size_t>(map.box[0]) * map.element_bytes;
        for (std::size_t row = 0; row < bytes / row_bytes; ++row) {
            char* from = map.data;
            bool inside = true;
            std::size_t rest = row;
            for (int i = 1; i < map.rank; rest /= map.box[i], ++i) {
                const long long index = at[i] + static_cast<long long>(rest % map.box[i]);
                inside = inside && index >= 0 && index < static_cast<long long>(map.sizes[i]);
                from += index * map.strides[i - 1];
            }
            const long long size = static_cast<long long>(map.sizes[0]), first = at[0], end = first + map.box[0];
            const long long in = inside ? std::clamp<long long>(0, first, end) : end, out = std::max(in, std::min(size, end));
            const auto part = [&](long long begin, long long end_of_part, bool exists) {
                if (begin < end_of_part)
                    visit(row * row_bytes + static_cast<std::size_t>(begin - first) * map.element_bytes,
                          exists ? from + begin * map.element_bytes : nullptr,
                          static_cast<std::size_t>(end_of_part - begin) * map.element_bytes);
            };
            part(first, in, false);
            part(in, out, true);
            part(out, end, false);
        }
    }
    Bytes read(const Asynchronous& by) const {
        Bytes read(bytes);
        for_each_row([&](std::size_t before, const char* from, std::size_t count) {
            if (from == nullptr) return;
            check_global_read(from, count, by);
            std::memcpy(read.data() + before, from, count);
        });
        return read;
    }
    void write(const Bytes& x) const {
        for_each_row([&](std::size_t before, char* to, std::size_t count) {
            if (to != nullptr) std::memcpy(to, x.data() + before, count);
        });
    }
    // The swizzled address in shared memory of the 16 bytes at offset `before` of a tile.
    unsigned vector_at(unsigned tile, std::size_t before) const {
        const unsigned address = tile + static_cast<unsigned>(before), mask = is_box ? map.swizzle / kVectorBytes - 1 : 0;
        return address ^ (address >> 7 & mask) * kVectorBytes;
    }
};

const EmulatedTensorMap& map_of(const void* map, int rank, Place place) {
    if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) fail_at(place, "a tensor map at a misaligned address");
    const auto& found = *static_cast<const EmulatedTensorMap*>(map);
    if (found.mark != kTensorMap) fail_at(place, "no tensor map");
    if (found.rank != rank) fail_at(place, "a tensor map of another rank");
    return found;
}

Global box_of(const void* map, Coordinates at, Place place) {
    Global box{map_of(map, static_cast<int>(at.size()), place), {}, nullptr, 0, true};
    std::copy(at.begin(), at.end(), box.at);
    box.bytes = box.map.element_bytes;
    for (int i = 0; i < box.map.rank; ++i) box.bytes *= box.map.box[i];
    if (box.map.swizzle > kVectorBytes && box.map.box[0] * box.map.element_bytes != box.map.swizzle)
        fail_at(place, "a box whose rows are shorter than the swizzle's, which the emulator does not support");
    return box;
}
Global row_of(const void* data, std::size_t bytes, Place place) {
    if (bytes == 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(data) % 16 != 0)
        fail_at(place, "a bulk copy that is not of multiples of 16 bytes");
    return {{}, {}, static_cast<char*>(const_cast<void*>(data)), bytes, false};
}

// Whether the instruction completes at once in this run: the opposite in the reversed run.
bool ends_at_once(unsigned tile, const Global& global, unsigned phase) {
    std::uint64_t hash = tile * 0x9e3779b97f4a7c15ull + phase;
    for (const int x : global.at) hash = (hash ^ static_cast<unsigned>(x)) * 0xff51afd7ed558ccdull;
    return drawn(hash >> 40);
}

// ---- Loads

struct Target {
    unsigned tile, mbarrier, phase;
};
struct Load {
    Global from;
    Bytes value;  // the value of a st.async
    std::vector<Target> targets;
    Asynchronous by;
    Clock before = {};  // its thread's clock when it begins

    std::size_t bytes() const { return value.empty() ? from.bytes : value.size(); }
    std::size_t vector_bytes() const { return std::min<std::size_t>(kVectorBytes, bytes()); }
    bool is_tracked() const { return bytes() >= kVectorBytes; }  // several smaller ones may be in one vector
    template <class Visit>
    void for_each_vector(const Target& target, Visit&& visit) const {
        for (std::size_t before = 0; before < bytes(); before += kVectorBytes)
            visit(from.vector_at(target.tile, before), before);
    }
};
std::vector<Load> loads;  // in flight
Place arriving = nullptr;

void end(const Load& load) {
    arriving = load.by.place;
    const Bytes read = load.value.empty() ? load.from.read(load.by) : load.value;
    for (const Target& target : load.targets) {
        const Event event = end_of_phase(target.mbarrier, target.phase, load.by.place);
        load.for_each_vector(target, [&](unsigned vector, std::size_t before) {
            std::memcpy(shared_pointer(vector), read.data() + before, load.vector_bytes());
            if (load.is_tracked()) end_write(vector, event);
        });
        bytes_arrive(target.mbarrier, static_cast<unsigned>(read.size()), target.phase, load.before, load.by.place);
    }
    arriving = nullptr;
}

void begin(Load load, unsigned tile, unsigned mbarrier, unsigned blocks) {
    const Place place = arriving = load.by.place;
    if (tile % (load.from.is_box ? 128 : std::min<std::size_t>(kVectorBytes, load.bytes())) != 0)
        fail_at(place, "a copy to a misaligned address of shared memory");
    for (unsigned rank = 0; blocks >> rank != 0; ++rank)
        if ((blocks >> rank & 1) != 0) {
            const Target target{address_in_block(tile, rank), address_in_block(mbarrier, rank), 0};
            load.targets.push_back(target);
        }
    for (Target& target : load.targets) {
        pointer_for_store(target.tile);
        check_mbarrier_of_copy(target.mbarrier, place);
        target.phase = phase_of(target.mbarrier, place);
        load.for_each_vector(target, [&](unsigned vector, std::size_t) {
            std::memset(shared_pointer(vector), kUnwritten, load.vector_bytes());
            if (load.is_tracked()) begin_write(vector, load.by);
        });
    }
    arriving = nullptr;
    release(load.before);
    if (ends_at_once(tile, load.from, load.targets.front().phase))
        end(load);
    else
        loads.push_back(std::move(load));
}

unsigned this_block() {
    return 1u << rank_of(current);
}
Asynchronous by_this_thread(const char* what, Place place) {
    return {what, place, current, current};
}
unsigned shared(const void* pointer, Place place) {
    if (!is_shared(pointer)) fail_at(place, "a copy to or from what is not shared memory");
    return shared_address(pointer);
}

// ---- Stores

struct TmaStore {
    Global to;
    unsigned tile;
    Bytes read;  // empty until the source was read
    Asynchronous by;
};
using Group = std::vector<TmaStore>;
std::deque<Group> groups[kMostFibers];  // by thread; the last is open
std::vector<TmaStore> unwritten;        // source read, destination not yet written

void read(TmaStore& store) {
    store.read.resize(store.to.bytes);
    for (std::size_t before = 0; before < store.read.size(); before += kVectorBytes)
        std::memcpy(store.read.data() + before, shared_pointer(store.to.vector_at(store.tile, before)), kVectorBytes);
}
void write(const TmaStore& store) {
    arriving = store.by.place;
    store.to.write(store.read);
    arriving = nullptr;
}

void begin(TmaStore store) {
    const Place place = store.by.place;
    if (store.tile % (store.to.is_box ? 128 : 16) != 0) fail_at(place, "a copy from a misaligned address of shared memory");
    for (std::size_t before = 0; before < store.to.bytes; before += kVectorBytes)
        begin_read(store.to.vector_at(store.tile, before), store.by);
    if (ends_at_once(store.tile, store.to, 0)) read(store);
    auto& mine = groups[current];
    if (mine.empty()) mine.emplace_back();
    mine.back().push_back(std::move(store));
}

}  // namespace

void tma_load(const void* map, Coordinates at, void* to, const void* mbarrier) {
    const Place place = __builtin_return_address(0);
    begin({box_of(map, at, place), {}, {}, by_this_thread("a TMA load", place)}, shared(to, place), shared(mbarrier, place),
          this_block());
}
void tma_load_multicast(const void* map, Coordinates at, void* to, const void* mbarrier, unsigned blocks) {
    const Place place = __builtin_return_address(0);
    if (blocks == 0 || blocks >> now.blocks != 0) fail_at(place, "a multicast to blocks outside of the cluster");
    begin({box_of(map, at, place), {}, {}, by_this_thread("a TMA load", place)}, shared(to, place), shared(mbarrier, place),
          blocks);
}
void bulk_load(const void* from, unsigned bytes, void* to, const void* mbarrier) {
    const Place place = __builtin_return_address(0);
    begin({row_of(from, bytes, place), {}, {}, by_this_thread("a bulk load", place)}, shared(to, place),
          shared(mbarrier, place), this_block());
}
void store_async(std::uint64_t low, std::uint64_t high, unsigned bytes, unsigned to, unsigned mbarrier) {
    const Place place = __builtin_return_address(0);
    if (to / kArenaPitch != mbarrier / kArenaPitch) fail_at(place, "st.async with an mbarrier of another block");
    const std::uint64_t both[] = {low, high};
    const char* const value = reinterpret_cast<const char*>(both);
    // st.async belongs to the generic proxy, so it needs no fence after earlier stores of threads.
    begin({{}, Bytes(value, value + bytes), {}, {"st.async", place, 1, 0}}, to, mbarrier, 1u << to / kArenaPitch);
}

void tma_store(const void* map, Coordinates at, const void* from) {
    const Place place = __builtin_return_address(0);
    begin(TmaStore{box_of(map, at, place), shared(from, place), {}, by_this_thread("a TMA store", place)});
}
void bulk_store(void* to, const void* from, unsigned bytes) {
    const Place place = __builtin_return_address(0);
    begin(TmaStore{row_of(to, bytes, place), shared(from, place), {}, by_this_thread("a bulk store", place)});
}
void close_bulk_group() {
    auto& mine = groups[current];
    if (mine.empty()) mine.emplace_back();
    mine.emplace_back();
}
void wait_for_bulk_groups(int most_in_flight, bool written) {
    auto& mine = groups[current];
    for (; static_cast<int>(mine.size()) > most_in_flight + 1; mine.pop_front())
        for (TmaStore& store : mine.front()) {
            if (store.read.empty()) read(store);
            for (std::size_t before = 0; before < store.to.bytes; before += kVectorBytes)
                end_read(store.to.vector_at(store.tile, before));
            unwritten.push_back(std::move(store));
        }
    const auto is_late = [&](const TmaStore& store) { return !written && !ends_at_once(store.tile, store.to, 1); };
    for (const TmaStore& store : unwritten)
        if (store.by.first == current && !is_late(store)) write(store);
    std::erase_if(unwritten, [&](const TmaStore& store) { return store.by.first == current && !is_late(store); });
}

void check_tensor_map(const void* map, int rank) {
    map_of(map, rank, __builtin_return_address(0));
}

bool complete_one_copy() {
    if (loads.empty()) return false;
    std::swap(loads[drawn_below(static_cast<unsigned>(loads.size()))], loads.back());
    const Load load = std::move(loads.back());
    loads.pop_back();
    end(load);
    return true;
}
Place place_of_arrival() {
    return arriving;
}
void check_copies_of_thread() {
    for (const Group& group : groups[current])
        if (!group.empty()) fail_at(group.front().by.place, "returns before its TMA store has read shared memory; it begins");
    if (my_block().living > 1) return;
    for (const Load& load : loads)
        for (const Target& target : load.targets)
            if (static_cast<int>(target.tile / kArenaPitch) == rank_of(current))
                fail_at(load.by.place, "all threads return before what is copied to their shared memory arrives; it begins");
}
void end_copies() {
    for (const TmaStore& store : unwritten) write(store);
    unwritten.clear();
}
void reset_copies() {
    arriving = nullptr;
    loads.clear();
    unwritten.clear();
    for (int each = 0; each < now.threads * now.blocks; ++each) groups[each].clear();
}

}  // namespace emulator
