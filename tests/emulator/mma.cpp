#include "mma.hpp"

#include <algorithm>

#include "elements.hpp"

namespace emulator {
namespace {

constexpr int kRows = 16, kColumns = 8, kMostDepth = 16;

void multiply(const Words& words) {
    if (lanes_of_warp() != kLanes) fail("mma.sync, and a lane of the warp has returned");
    const auto of = [&](int lane) -> const Mma& { return *reinterpret_cast<const Mma*>(words[lane]); };
    double a[kMostDepth][kRows], b[kMostDepth][kColumns];
    const Elements elements = of(0).elements;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int g = lane / 4, t = lane % 4;
        if (of(lane).elements != elements) fail("mma.sync of different types in a warp");
        for (int i = 0; i < 4; ++i) {
            const unsigned x = of(lane).a[i], y = of(lane).b[i % 2];
            const int row = g + i % 2 * 8;
            if (elements == Elements::tf32) {
                a[t + i / 2 * 4][row] = value_of_tf32(x);
                b[t + i % 2 * 4][g] = value_of_tf32(y);
            } else {
                for (int half = 0; half < 2; ++half) {
                    const bool is_bf16 = elements == Elements::bf16;
                    a[2 * t + half + i / 2 * 8][row] = value_of_16_bits(static_cast<unsigned short>(x >> 16 * half), is_bf16);
                    b[2 * t + half + i % 2 * 8][g] = value_of_16_bits(static_cast<unsigned short>(y >> 16 * half), is_bf16);
                }
            }
        }
    }
    double sums[kRows][kColumns];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = of(lane).c[i];
    for (int row = 0; row < kRows; ++row)
        for (int k = 0; k < (elements == Elements::tf32 ? 8 : 16); ++k)
            for (int n = 0; n < kColumns; ++n) sums[row][n] += a[k][row] * b[k][n];
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) *of(lane).d[i] = static_cast<float>(sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
}

void multiply_s8(const Words& words) {
    if (lanes_of_warp() != kLanes) fail("mma.sync, and a lane of the warp has returned");
    const auto of = [&](int lane) -> const MmaS8& { return *reinterpret_cast<const MmaS8*>(words[lane]); };
    unsigned results[kLanes][4];
    const auto byte = [](unsigned word, int k) { return static_cast<signed char>(word >> 8 * (k % 4)); };
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) {
            const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            unsigned sum = of(lane).c[i];  // wraps
            for (int k = 0; k < 32; ++k) {
                const int t = k % 16 / 4;
                sum += static_cast<unsigned>(byte(of(row % 8 * 4 + t).a[k / 16 * 2 + row / 8], k) *
                                             byte(of(column * 4 + t).b[k / 16], k));
            }
            results[lane][i] = sum;
        }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) *of(lane).d[i] = results[lane][i];
}

}  // namespace

void mma_sync(const Mma& mine) {
    sync_warp_then("mma.sync", reinterpret_cast<std::uintptr_t>(&mine), multiply, __builtin_return_address(0));
}

void mma_sync_s8(const MmaS8& mine) {
    sync_warp_then("mma.sync of int8", reinterpret_cast<std::uintptr_t>(&mine), multiply_s8, __builtin_return_address(0));
}

}  // namespace emulator
