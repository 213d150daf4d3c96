#include "wgmma.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "accesses.hpp"
#include "async.hpp"
#include "elements.hpp"
#include "faults.hpp"
#include "state.hpp"

namespace emulator {
namespace {

constexpr int kRows = 16, kDepth = 16;  // the slice of a that a warp multiplies
constexpr int kMostColumns = 256, kWarps = 4;

// ---- Operands in shared memory

// CUTLASS's canonical layouts: rows of the swizzle's length hold elements that are contiguous along k, or along m or n.
struct Operand {
    unsigned arena, start, leading, stride, row;  // in bytes; row: 16 (no swizzle), 32, 64, 128
    bool along_k;

    Operand(std::uint64_t descriptor, bool along_k, Place place) : along_k(along_k) {
        const auto bits = [&](int first, int count) {
            return static_cast<unsigned>(descriptor >> first & ((1u << count) - 1));
        };
        constexpr unsigned kRowOf[] = {16, 128, 64, 32};
        arena = static_cast<unsigned>(rank_of(current) * kArenaPitch);
        start = bits(0, 14) * 16;
        leading = bits(16, 14) * 16;
        stride = bits(32, 14) * 16;
        row = kRowOf[bits(62, 2)];
        if ((start >> 7 & (row / 16 - 1)) != bits(49, 3))
            fail_at(place, "a wgmma operand that does not begin where the swizzle's pattern does, at " +
                               text_of_shared(arena + start));
    }
    // The 16 bytes that begin with element 8 i of the contiguous dimension, at index `other` of the other dimension.
    unsigned vector_at(unsigned i, unsigned other) const {
        const unsigned vectors = row / 16;  // of 16 bytes, in a row
        unsigned at = start;
        if (along_k)
            at += other / 8 * stride + other % 8 * row + (vectors == 1 ? i * leading : i * 16);
        else if (vectors == 1)
            at += i * stride + other % 8 * 16 + other / 8 * leading;
        else
            at += i / vectors * leading + i % vectors * 16 + other % 8 * row + other / 8 * stride;
        return arena + (at ^ (at >> 7 & (vectors - 1)) * 16) % kArenaBytes;
    }
};

// ---- A warp's products

struct Accumulator {
    std::array<float*, kLanes> registers;
    int columns, in_flight = 0;
    std::vector<float> sums;  // kRows x columns

    // Calls visit(register, sum) for each element of the lane.
    template <class Visit>
    void for_each(int lane, Visit&& visit) {
        for (int i = 0; i < columns / 2; ++i)
            visit(registers[lane][i], sums[(lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2]);
    }
};
struct Product {
    std::shared_ptr<Accumulator> into;
    std::vector<unsigned> vectors;  // addresses of the shared memory that it reads
};
struct Warp {
    std::deque<std::vector<Product>> groups;  // the last is open
    std::vector<std::shared_ptr<Accumulator>> in_flight;
    bool fenced = false;
    std::vector<std::uint64_t> issued;  // a hash of each product; the other warps of the warpgroup issue the same
};
Warp warps[kMostFibers / kLanes];

Warp& my_warp() {
    return warps[warp_of(current)];
}
int first_fiber_of_warp() {
    return current - thread_of(current) % kLanes;
}

// Each lane passes a pointer to this as its word of the warp barrier.
struct Issued {
    const Wgmma* wgmma;
    Place place;
};
const Issued& issued_by(std::uint64_t word) {
    return *reinterpret_cast<const Issued*>(word);
}

void expect_warpgroup(Place place) {
    constexpr int kThreads = kWarps * kLanes;
    if (lanes_of_warp() != kLanes || thread_of(current) / kThreads * kThreads + kThreads > now.threads)
        fail_at(place, "wgmma by less than a warpgroup");
}

// Fails unless the warps of a warpgroup issue the same products in the same order.
void note_issue(const Wgmma& each, Place place) {
    Warp& mine = my_warp();
    const std::uint64_t hash =
        (each.b * 31 + (each.a_is_shared ? each.a : 0)) * 31 + static_cast<unsigned>(each.columns) * 2 + each.adds;
    const int first = warp_of(current) / kWarps * kWarps;
    for (int other = first; other < first + kWarps; ++other) {
        const auto& issued = warps[other].issued;
        const bool has_same = issued.size() > mine.issued.size() && issued[mine.issued.size()] == hash;
        const bool may_come = issued.size() <= mine.issued.size() && now.warps[other].members > 0;
        if (!has_same && !may_come) fail_at(place, "a wgmma that another warp of the warpgroup does not issue");
    }
    mine.issued.push_back(hash);
}

std::shared_ptr<Accumulator> accumulator_of(const Words& words, const Wgmma& each, Place place) {
    Warp& warp = my_warp();
    for (const auto& known : warp.in_flight)
        if (known->registers[0] == each.d) {
            if (known->columns != each.columns) fail_at(place, "wgmmas of different shapes in flight in the same registers");
            return known;
        }
    if (!warp.fenced) fail_at(place, "a wgmma without wgmma.fence (warpgroup_arrive) after the last use of its registers");
    auto made = std::make_shared<Accumulator>();
    made->columns = each.columns;
    made->sums.resize(static_cast<std::size_t>(kRows * each.columns));
    for (int lane = 0; lane < kLanes; ++lane) {
        made->registers[lane] = issued_by(words[lane]).wgmma->d;
        made->for_each(lane, [&](float& x, float& sum) {
            sum = x;
            std::memset(&x, kUnwritten, sizeof x);
        });
        float* const d = made->registers[lane];
        fibers[first_fiber_of_warp() + lane].in_flight.push_back({d, d + each.columns / 2, place});
    }
    warp.in_flight.push_back(made);
    return made;
}

// Reads `rows` rows of an operand, from row `first` on, into `into` as [k][row].
void read(const Operand& operand, int first, int rows, bool is_bf16, bool negates, double* into, Product& product,
          const Asynchronous& by) {
    const auto take = [&](unsigned i, unsigned other, auto&& store) {
        const unsigned vector = operand.vector_at(i, other);
        begin_read(vector, by);
        product.vectors.push_back(vector);
        unsigned short elements[8];
        std::memcpy(elements, shared_pointer(vector), sizeof elements);
        for (int e = 0; e < 8; ++e)
            store(e, negates ? -value_of_16_bits(elements[e], is_bf16) : value_of_16_bits(elements[e], is_bf16));
    };
    if (operand.along_k) {
        for (int row = 0; row < rows; ++row)
            for (int i = 0; i < kDepth / 8; ++i)
                take(i, first + row, [&](int e, double x) { into[(8 * i + e) * rows + row] = x; });
    } else {
        for (int k = 0; k < kDepth; ++k)
            for (int i = 0; i < rows / 8; ++i) take(first / 8 + i, k, [&](int e, double x) { into[k * rows + 8 * i + e] = x; });
    }
}

void multiply(const Words& words) {
    const Wgmma& each = *issued_by(words[0]).wgmma;
    const Place place = issued_by(words[0]).place;
    expect_warpgroup(place);
    for (const std::uint64_t word : words)
        if (!issued_by(word).wgmma->same_for_all(each)) fail_at(place, "lanes of a warp issue different wgmmas");
    note_issue(each, place);
    const int warp_in_group = warp_of(current) % kWarps, first = first_fiber_of_warp();
    const Asynchronous by{"wgmma", place, first, first + kLanes - 1};
    Product product{accumulator_of(words, each, place), {}};
    static double a[kDepth * kRows], b[kDepth * kMostColumns], sums[kMostColumns];
    if (each.a_is_shared) {
        read(Operand(each.a, each.a_along_k, place), warp_in_group * kRows, kRows, each.is_bf16, each.negates_a, a, product,
             by);
    } else {
        for (int lane = 0; lane < kLanes; ++lane)
            for (int i = 0; i < 8; ++i) {
                const unsigned pair = issued_by(words[lane]).wgmma->registers[i / 2];
                const double x = value_of_16_bits(static_cast<unsigned short>(pair >> i % 2 * 16), each.is_bf16);
                a[(i / 4 * 8 + lane % 4 * 2 + i % 2) * kRows + lane / 4 + i / 2 % 2 * 8] = each.negates_a ? -x : x;
            }
    }
    read(Operand(each.b, each.b_along_k, place), 0, each.columns, each.is_bf16, each.negates_b, b, product, by);
    Accumulator& into = *product.into;
    const int columns = each.columns;
    for (int row = 0; row < kRows; ++row) {
        float* const c = into.sums.data() + row * columns;
        for (int n = 0; n < columns; ++n) sums[n] = each.adds ? c[n] : 0.;
        for (int k = 0; k < kDepth; ++k) {
            const double x = a[k * kRows + row];
            for (int n = 0; n < columns; ++n) sums[n] += x * b[k * columns + n];
        }
        for (int n = 0; n < columns; ++n) c[n] = static_cast<float>(sums[n]);
    }
    ++into.in_flight;
    Warp& warp = my_warp();
    if (warp.groups.empty()) warp.groups.emplace_back();
    warp.groups.back().push_back(std::move(product));
}

// Called when a thread has waited for the product: writes its results to the registers, unless another product in flight adds
// to them.
void end(Warp& warp, const Product& product) {
    for (const unsigned vector : product.vectors) end_read(vector);
    Accumulator& into = *product.into;
    if (--into.in_flight > 0) return;
    warp.fenced = false;
    for (int lane = 0; lane < kLanes; ++lane) {
        into.for_each(lane, [](float& x, float sum) { x = sum; });
        std::erase_if(fibers[first_fiber_of_warp() + lane].in_flight,
                      [&](const Registers& registers) { return registers.begin == into.registers[lane]; });
    }
    std::erase(warp.in_flight, product.into);
}

}  // namespace

void wgmma(const Wgmma& mine) {
    const Issued issued{&mine, __builtin_return_address(0)};
    sync_warp_then("wgmma", reinterpret_cast<std::uintptr_t>(&issued), multiply, issued.place);
}
void wgmma_fence() {
    const Place place = __builtin_return_address(0);
    sync_warp_then("wgmma.fence", 0, [](const Words&) { my_warp().fenced = true; }, place);
}
void wgmma_commit() {
    const Place place = __builtin_return_address(0);
    const auto commit = [](const Words&) {
        Warp& warp = my_warp();
        if (warp.groups.empty()) warp.groups.emplace_back();
        warp.groups.emplace_back();
    };
    sync_warp_then("wgmma.commit_group", 0, commit, place);
}
void wgmma_wait(int most_in_flight) {
    const Place place = __builtin_return_address(0);
    const auto wait = [](const Words& words) {
        Warp& warp = my_warp();
        for (; warp.groups.size() > words[0] + 1; warp.groups.pop_front())
            for (const Product& product : warp.groups.front()) end(warp, product);
    };
    sync_warp_then("wgmma.wait_group", static_cast<std::uint64_t>(most_in_flight), wait, place);
}

void check_products_of_thread() {
    if (!fibers[current].in_flight.empty())
        fail_at(fibers[current].in_flight.front().place, "returns before its wgmma has ended; it begins");
    const int first = warp_of(current) / kWarps * kWarps;
    for (int other = first; other < first + kWarps; ++other)
        if (warps[other].issued.size() > my_warp().issued.size())
            fail("returns, and another warp of the warpgroup has issued more wgmmas");
}
void reset_products() {
    for (int rank = 0; rank < now.blocks; ++rank)
        for (int warp = 0; warp < kMostThreads / kLanes; ++warp) {
            Warp& each = warps[rank * (kMostThreads / kLanes) + warp];
            each.groups.clear();
            each.in_flight.clear();
            each.issued.clear();
            each.fenced = false;
        }
}

}  // namespace emulator
