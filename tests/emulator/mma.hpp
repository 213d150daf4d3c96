// mma.sync on a CPU: the lane that arrives last multiplies for its warp. Products are exact and accumulated in fp64.
#pragma once

#include <cstdint>

#include "grid.hpp"

namespace emulator {

enum class Elements { bf16, f16, tf32 };

// A lane's fragments of d (16 x 8) = a (16 x k) b (k x 8) + c, k = 8 for tf32, else 16, in the order of the PTX manual.
struct Mma {
    Elements elements;
    unsigned a[4], b[2];
    float c[4];
    float* d[4];
};
void mma_sync(const Mma& mine);

// The same for int8 elements and int32 sums, k = 32.
struct MmaS8 {
    unsigned a[4], b[2], c[4];
    unsigned* d[4];
};
void mma_sync_s8(const MmaS8& mine);

}  // namespace emulator
