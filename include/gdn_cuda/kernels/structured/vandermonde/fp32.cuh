// structured/vandermonde's products in fp32, on tensor cores, by 3xTF32 (tf32.cuh).
//
// An mma's k of eight is the real and imaginary parts of four poles. Accumulators start at 0 for each of these k and are summed
// in registers, rounded to nearest, since tensor cores truncate. The fragments' rows and columns are permuted so that a warp
// writes and reads tables 512 bytes at a time, two adjacent powers per lane, and a lane ends up with four adjacent outputs of a
// row.
//
// Tables of eight poles are computed while those of the previous eight are multiplied.
#pragma once

#include <gdn_cuda/kernels/common/tf32.cuh>
#include <gdn_cuda/kernels/structured/vandermonde/powers.cuh>

namespace gdn_cuda::structured {

template <VandermondeConfig kConfig>
    requires(kConfig.io == DType::c64)
struct VandermondeProducts<kConfig> {
    using Table = VandermondePowers<kConfig>;
    using Number = typename Table::Number;
    using Tables = VandermondeTables<kConfig>;
    using Fragment = VandermondeFragment;
    static constexpr int kPoles = Tables::kPoles;
    static constexpr int kWarps = kConfig.threads() / 32, kSteps = Tables::kSteps, kFragments = Tables::kFragments;
    // Warps along the leaps and along the steps of a square, and the fragments per warp.
    static constexpr int kAlongLeaps = 2, kLeaps = kFragments / kAlongLeaps;
    static constexpr int kAlongSteps = kFragments < kWarps / kAlongLeaps ? kFragments : kWarps / kAlongLeaps,
                         kColumns = kFragments / kAlongSteps;
    static_assert(kWarps % (2 * kSteps) == 0 && kFragments % (kWarps / (2 * kSteps)) == 0);

    VandermondeSharedPlan<kConfig>& shared;
    float sums[kLeaps][kColumns][2][4]{};

    // Recomputed at each use, since no registers are left.
    struct Place {
        int warp, lane;

        __device__ __forceinline__ Place() {
            const unsigned thread = opaque(threadIdx.x);
            warp = static_cast<int>(thread / 32);
            lane = static_cast<int>(thread % 32);
        }
        __device__ __forceinline__ bool multiplies() const { return warp < kAlongLeaps * kAlongSteps; }
        __device__ __forceinline__ int first_leap() const { return warp / kAlongSteps * kLeaps; }  // in fragments
        __device__ __forceinline__ int first_column() const { return warp % kAlongSteps * kColumns; }
    };

    // Number of poles that need roots if there are `poles`: whole tables.
    __device__ __forceinline__ static int padded(int poles) { return (poles + kPoles - 1) / kPoles * kPoles; }

    // Called by all warps, for half of the next poles; `left` remain, from index `first` of the poles with roots on. Half of
    // the warps multiply first, so that each scheduler has one warp for its tensor core and one for other instructions.
    static constexpr int kAtOnce = kPoles / 2;
    __device__ __forceinline__ void add(int first, int left) {
        if (first == 0) make_tables(0);
        const int half = first / kAtOnce % 2;
        if (half == 0) __syncthreads();
        if (half != Place().warp % 8 / 4)
            multiply(first / kPoles % 2);
        else if (first / kPoles * kPoles + kPoles < kConfig.poles && kPoles - half * kAtOnce < left)
            make_tables(first / kPoles * kPoles + kPoles);
    }
    // A warp computes every kWarpsPerStep-th fragment of four poles' powers of steps or of leaps: products of the fragment's
    // coarse root and fine roots.
    __device__ __forceinline__ void make_tables(int first_pole) {
        const Place me;
        constexpr int kWarpsPerStep = kWarps / (2 * kSteps);
        const int step = me.warp / kWarpsPerStep % kSteps, pole = first_pole + step * Fragment::kPoles + me.lane % 4;
        const bool leaps = me.warp / kWarpsPerStep / kSteps != 0;
        const Number v = Table::get(shared.residues[pole]);
        Number fine[2], turned[2];  // Re(x turned) is Im(x fine), negated for steps
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            fine[i] = Table::fine(shared.roots, pole, leaps, me.lane / 4 * 2 + i);
            if (leaps) fine[i] = Table::product(v, fine[i]);
            turned[i] = leaps ? Number{fine[i].im, -fine[i].re} : Number{-fine[i].im, fine[i].re};
        }
        const Number others[] = {fine[0], leaps ? fine[1] : turned[0], leaps ? turned[0] : fine[1], turned[1]};
        auto& to = shared.tables.at[first_pole / kPoles % 2][leaps][step];
#pragma unroll
        for (int i = 0; i < kFragments; i += kWarpsPerStep) {
            asm volatile("" ::: "memory");
            const int fragment = i + me.warp % kWarpsPerStep;
            const Number coarse = Table::coarse(shared.roots, pole, leaps, fragment);
            Fragment::OfLane high, residual;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const TwoParts power = TwoParts::nearest(coarse.re * others[j].re - coarse.im * others[j].im);
                high.at[j] = power.high;
                residual.at[j] = power.residual;
            }
            to[fragment].high[me.lane] = high;
            to[fragment].residual[me.lane] = residual;
        }
    }
    __device__ __forceinline__ void multiply(int which) {
        const Place me;
        if (!me.multiplies()) return;
#pragma unroll 1
        for (int step = 0; step < kSteps; ++step) {
            const auto& near = shared.tables.at[which][0][step];
            const auto& far = shared.tables.at[which][1][step];
            Fragment::OfLane near_high[kColumns], near_residual[kColumns];
#pragma unroll
            for (int i = 0; i < kColumns; ++i) {
                near_high[i] = near[me.first_column() + i].high[me.lane];
                near_residual[i] = near[me.first_column() + i].residual[me.lane];
            }
#pragma unroll
            for (int a = 0; a < kLeaps; ++a) {
                const auto high = far[me.first_leap() + a].high[me.lane], residual = far[me.first_leap() + a].residual[me.lane];
#pragma unroll
                for (int b = 0; b < kColumns; ++b) {
                    float parts[2][4]{};
#pragma unroll
                    for (int product = 0; product < 3; ++product)  // small products first
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const auto& right = product == 1 ? near_residual[b] : near_high[b];
                            mma_m16n8k8_tf32(parts[half], product == 0 ? residual.at : high.at, right.at[2 * half],
                                             right.at[2 * half + 1]);
                        }
#pragma unroll
                    for (int half = 0; half < 2; ++half)
#pragma unroll
                        for (int i = 0; i < 4; ++i) sums[a][b][half][i] += parts[half][i];
                }
            }
        }
    }
    // `out`: start of the square; the row has `outputs` outputs from there on.
    __device__ __forceinline__ void store(float* out, i64 outputs) const {
        const Place me;
        if (!me.multiplies()) return;
        const int first = (me.first_leap() * Fragment::kPowers + me.lane / 4 * 2) * kConfig.side +
                          me.first_column() * Fragment::kPowers + me.lane % 4 * 4;
        const bool whole = outputs >= kConfig.square() && reinterpret_cast<unsigned long long>(out) % 16 == 0;
        const int left = static_cast<int>(outputs < kConfig.square() ? outputs : kConfig.square()) - first;
        float* const mine = out + first;
#pragma unroll
        for (int a = 0; a < kLeaps; ++a)
#pragma unroll
            for (int row = 0; row < 2; ++row)
#pragma unroll
                for (int b = 0; b < kColumns; ++b) {
                    const auto& of = sums[a][b];
                    const int at = (a * Fragment::kPowers + row) * kConfig.side + b * Fragment::kPowers;
                    const float four[] = {2 * of[0][2 * row], 2 * of[1][2 * row], 2 * of[0][2 * row + 1],
                                          2 * of[1][2 * row + 1]};
                    if (whole) {
                        *reinterpret_cast<float4*>(mine + at) = {four[0], four[1], four[2], four[3]};
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            if (at + i < left) mine[at + i] = four[i];
                    }
                }
    }
};

}  // namespace gdn_cuda::structured
