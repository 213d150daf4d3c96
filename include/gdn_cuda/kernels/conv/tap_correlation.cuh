// Gradients of taps on tensor cores: sums over tokens s of a tile of dz_s u_{s-j}, for 128 lags j.
//
// With tokens in units of eight, s = 8 a + c and s - j = 8 (a - m) + b, the sums over units
//     P_m[b][c] = sum over a of u_{8 (a - m) + b} dz_{8 a + c},    m = 0 .. 16
// have every product once, and lag 8 m + c - b is a sum over eight of them. ldmatrix transposes units as they lie in shared
// memory into operands. An mma takes m and m + 1 and 16 units: of each of the tile's eight rows of 64 tokens, which lie in
// different banks (toeplitz_band.cuh), units x and x + 2. Registers of the left operand are then the units x - m, x - m - 1,
// x - m + 2, x - m + 1 of rows, in the order in which ldmatrix loads them.
//
// A tile takes 108 mma for 128 lags and three products of parts. P goes through shared memory to be summed up, so that tensor
// cores, which truncate, add up 64 products of each part at most.
//
// Lags beyond the filter may have any sums, also of memory that nobody has written: nobody reads them.
#pragma once

#include <gdn_cuda/kernels/conv/tap_correlation_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_band.cuh>

namespace gdn_cuda::conv {

// P_m[b][c] in a warp's `scratch`; an XOR by m keeps what lanes of four m read in different banks.
__device__ __forceinline__ int place_of_product(int m, int b, int c) {
    return 64 * m + ((8 * b + c) ^ (8 * (m % 4)));
}

// sums[j] += those of the 512 tokens s from unit `first_unit` on and the lags first_lag + j, j < lags.
template <int kPieces, int kParts>
__device__ __forceinline__ void add_correlation(float* sums, float* scratch, const BandRing<kPieces, kParts>& u,
                                                const BandRing<kPieces, kParts>& dz, int first_unit, int first_lag, int lags) {
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int matrix = lane / 8, unit_of_row = 8 * (lane % 8);
    unsigned right[kParts][2][4];  // units 0, 2, 1, 3 and 4, 6, 5, 7 of rows
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int unit = first_unit + unit_of_row + 4 * half + matrix % 2 * 2 + matrix / 2;
#pragma unroll
        for (int part = 0; part < kParts; ++part) ldmatrix_x4_trans(right[part][half], dz.address(part, unit));
    }
    const int first_left = first_unit - first_lag / 8 + unit_of_row + matrix - matrix % 2 * 2;
    __syncwarp();
    // Units x and x + 1 before row m are those 4 further before row m + 4: m steps by 4, and each is loaded once.
    const auto load_left = [&](unsigned(&left)[2][kParts][4], int unit) {
#pragma unroll
        for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int part = 0; part < kParts; ++part) ldmatrix_x4_trans(left[x][part], u.address(part, unit + x));
    };
    const int last = (lags + 7) / 8;
#pragma unroll 1
    for (int begin = 0; begin <= min(last, 2); begin += 2) {
        unsigned left[2][2][kParts][4];
        load_left(left[1], first_left - begin + 4);
#pragma unroll
        for (int step = 0; step < 5; ++step) {
            const int m = begin + 4 * step;
            if (m > last) break;
            load_left(left[step % 2], first_left - m);
            float products[2][4] = {};  // two chains of sums
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int x = 0; x < 2; ++x)
                    for_products<kParts, kParts>([&](int i, int j) {
                        const unsigned(&b)[4] = right[j][half];
                        mma_m16n8k16<DType::bf16>(products[x], left[(step + half) % 2][x][i], b[2 * x], b[2 * x + 1]);
                    });
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (m + i < kCorrelatedPieces)
                    *reinterpret_cast<float2*>(scratch + place_of_product(m + i, g, 2 * t)) = {
                        products[0][2 * i] + products[1][2 * i], products[0][2 * i + 1] + products[1][2 * i + 1]};
        }
    }
    __syncwarp();
    float of_lags[4] = {};
#pragma unroll
    for (int b = 0; b < 8; ++b) {
        const int c = b + lane % 8;
        const int place = place_of_product(lane / 8 + c / 8, b, c % 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) of_lags[i] += scratch[place + 4 * 64 * i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[32 * i + lane] += of_lags[i];
}

}  // namespace gdn_cuda::conv
