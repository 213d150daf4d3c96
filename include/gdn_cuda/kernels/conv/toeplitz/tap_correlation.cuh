// Gradients of taps on tensor cores: sums over tokens s of a tile of dz_s u_{s-j}, for 128 lags j.
//
// With tokens in units of eight, s = 8 a + c and s - j = 8 (a - m) + b, the sums over units
//     P_m[b][c] = sum over a of u_{8 (a - m) + b} dz_{8 a + c},    m = 0 .. 16
// contain every product once, and lag 8 m + c - b is a sum of eight of them. ldmatrix transposes units in shared memory into
// operands. An mma combines m and m + 1 with 16 units: units x and x + 2 of each of the tile's eight rows of 64 tokens,
// which are in different banks (toeplitz/band.cuh). The registers of the left operand are then units x - m, x - m - 1, x - m
// + 2, x - m + 1 of rows, in the order in which ldmatrix loads them.
//
// A tile takes 108 mma for 128 lags and three products of parts. P is summed through shared memory, so that tensor cores,
// which truncate, add at most 64 products of each part.
//
// Lags beyond the filter get arbitrary sums, also of uninitialized memory: nobody reads them.
#pragma once

#include <gdn_cuda/kernels/conv/toeplitz/band.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/tap_correlation_plan.cuh>

namespace gdn_cuda::conv {

// P_m[b][c] in a warp's `scratch`; the XOR by m puts what lanes read of four m into different banks.
__device__ __forceinline__ int place_of_product(int m, int b, int c) {
    return 64 * m + ((8 * b + c) ^ (8 * (m % 4)));
}

// Writes P_m and P_{m+1} for m = kFirst, kFirst + 4, … up to `last` to scratch. `right`: units 0, 2, 1, 3 and 4, 6, 5, 7 of
// rows. `rows`: where the lane's row of u and the three before it begin.
//
// Units x and x + 1 before row m are units x + 4 and x + 5 before row m + 4, so each is loaded once, for the second half of
// the rows in one step and for the first half in the step before. Four chains of sums hide the latency of an mma.
template <int kFirst, bool kAll, int kPartBytes, int kParts>
__device__ __forceinline__ void correlate_units(float* scratch, int lane, const unsigned (&right)[kParts][2][4],
                                                const unsigned (&rows)[4], int last) {
    constexpr int kSteps = (kCorrelatedUnits - 1 - kFirst) / 4 + 1;
    const int g = lane / 4, t = lane % 4, matrix = lane / 8;
    float products[kSteps][2][4] = {};
#pragma unroll
    for (int step = -1; step < kSteps; ++step) {
        if (!kAll && kFirst + 4 * step > last) break;
        unsigned left[2][kParts][4];
#pragma unroll
        for (int x = 0; x < 2; ++x) {
            const int unit = matrix - matrix % 2 * 2 + x - kFirst;  // relative to the row's first unit, for step 0
            const bool is_odd = step % 2 != 0;                      // half a row earlier
            const unsigned row = is_odd || unit >= 0 ? rows[(step + 1) / 2] : rows[step / 2 + 1];
            const unsigned address = row ^ (((is_odd ? unit + 4 : unit) & 7) * 16);
#pragma unroll
            for (int part = 0; part < kParts; ++part) ldmatrix_x4_trans(left[x][part], address + part * kPartBytes);
        }
        for_products<kParts, kParts>([&](int i, int j) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int x = 0; x < 2; ++x)
                    if (step + half >= 0 && step + half < kSteps) {
                        const unsigned(&b)[4] = right[j][half];
                        mma_m16n8k16<DType::bf16>(products[step + half][x], left[x][i], b[2 * x], b[2 * x + 1]);
                    }
        });
        if (step < 0) continue;
        const float(&sums)[2][4] = products[step];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int m = kFirst + 4 * step + i;
            if (m < kCorrelatedUnits)
                *reinterpret_cast<float2*>(scratch + place_of_product(m, g, 2 * t)) = {sums[0][2 * i] + sums[1][2 * i],
                                                                                       sums[0][2 * i + 1] + sums[1][2 * i + 1]};
        }
    }
}

// sums[j] += the sums over the 512 tokens s from unit `first_unit` on, for the lags first_lag + j, j < lags.
template <int kUnits, int kParts>
__device__ __forceinline__ void add_correlation(float* sums, float* scratch, const BandRing<kUnits, kParts>& u,
                                                const BandRing<kUnits, kParts>& dz, int first_unit, int first_lag, int lags) {
    constexpr int kPartBytes = BandRing<kUnits, kParts>::kPartBytes;
    unsigned thread = threadIdx.x;
    asm volatile(
        ""
        : "+r"(thread));  // opaque: hoisting what depends on the lane alone out of loops over tiles would take registers
    const int lane = static_cast<int>(thread % 32), matrix = lane / 8, row = first_unit / 8 + lane % 8;
    unsigned right[kParts][2][4];
    const unsigned right_address = dz.row_address(row) ^ ((matrix % 2 * 2 + matrix / 2) * 16);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int part = 0; part < kParts; ++part)
            ldmatrix_x4_trans(right[part][half], (right_address ^ (half * 64)) + part * kPartBytes);
    unsigned rows[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[i] = u.row_address(row - first_lag / 64 - i);
    __syncwarp();
    const int last = (lags + 7) / 8;
    if (last == kCorrelatedUnits - 1) {  // without branches, at which loads in flight would be waited for
        correlate_units<0, true, kPartBytes>(scratch, lane, right, rows, last);
        correlate_units<2, true, kPartBytes>(scratch, lane, right, rows, last);
    } else {
        correlate_units<0, false, kPartBytes>(scratch, lane, right, rows, last);
        correlate_units<2, false, kPartBytes>(scratch, lane, right, rows, last);
    }
    __syncwarp();
    float lag_sums[4] = {};
#pragma unroll
    for (int b = 0; b < 8; ++b) {
        const int c = b + lane % 8;
        const int place = place_of_product(lane / 8 + c / 8, b, c % 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) lag_sums[i] += scratch[place + 4 * 64 * i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[32 * i + lane] += lag_sums[i];
}

}  // namespace gdn_cuda::conv
