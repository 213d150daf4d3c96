// wgmma as CUTLASS's wrappers issue it. A warp multiplies for its quarter of the warpgroup's accumulators as soon as all of its
// lanes have issued the instruction. Until the thread has waited for the product, its accumulators are NaN; an access to them,
// or a store to an operand in shared memory, is reported.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace emulator {

struct Wgmma {
    int columns;  // of b and d
    bool is_bf16, a_is_shared, a_along_k, b_along_k, adds, negates_a, negates_b;
    std::uint64_t a, b;     // descriptors
    unsigned registers[4];  // the lane's elements of a, unless a is in shared memory
    float* d;               // columns / 2 accumulators

    bool same_for_all(const Wgmma& other) const {
        return columns == other.columns && is_bf16 == other.is_bf16 && a_is_shared == other.a_is_shared &&
               a_along_k == other.a_along_k && b_along_k == other.b_along_k && adds == other.adds &&
               negates_a == other.negates_a && negates_b == other.negates_b && a == other.a && b == other.b;
    }
};
void wgmma(const Wgmma& mine);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int most_in_flight);

}  // namespace emulator
