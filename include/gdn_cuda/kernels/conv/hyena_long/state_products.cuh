// The states of a tile's rows, in either direction of time: shared by conv/hyena_long_backward and conv/hyena_long_states;
// conv/hyena_long uses the products from states.
//
// A tile is 16 rows of 32 tokens (toeplitz/product.cuh). Forward in time a state carries u, x_t = p x_(t - 1) + u_t, and
// backward its gradient carries dz, l_t = R dz_t + p l_(t + 1). Both are products by the same powers of p, because token k
// of a row is token 31 - k of the row read from its end: reversed operands are those of another lane, in another order.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/pole_tables.cuh>

namespace gdn_cuda::conv {

// A lane's part of 16 states: [eight][i] is state 8 eight + 2 t + i. RowStates are those of its two rows: [half][eight][i].
using LaneStates = float[2][2];
using RowStates = LaneStates[2];
// Sums over a row's tokens, as accumulators: [eight][2 half + i].
using RowSums = float[2][4];

__device__ __forceinline__ int row_of_lane() {
    return lane_of_warp() / 4;
}
__device__ __forceinline__ int state_of_lane(int eight, int i) {
    return 8 * eight + 2 * (lane_of_warp() % 4) + i;
}

// ---- Tables

template <int kParts>
__device__ __forceinline__ void fill_powers(HyenaPowerGroup<kParts>& to, const HyenaPoles& poles, int group, int lane) {
    const int g = lane / 4, t = lane % 4, first = group * kHyenaGroup;
    const auto power = [&](int state, int tokens) {
        return first + state < poles.args.states ? pole_power(poles.log_pole(first + state), tokens) : 0.f;
    };
    const auto store = [](unsigned(&to)[kParts][2][32][4], int half, int lane, int word, float low, float high) {
        unsigned pair[kParts];
        split_pair(pair, low, high);
#pragma unroll
        for (int part = 0; part < kParts; ++part) to[part][half][lane][word] = pair[part];
    };
#pragma unroll 1
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll 1
        for (int p = 0; p < 4; ++p) {
            const int after = kRowTokens - 1 - (8 * t + 2 * p);  // tokens of the row after the first of the pair
            const float low = power(8 * eight + g, after), high = power(8 * eight + g, after - 1);
            store(to.from_tokens, eight, lane, p, low, high);
            store(to.slopes, eight, lane, p, after * low, (after - 1) * high);
        }
#pragma unroll 1
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll 1
        for (int j = 0; j < 4; ++j) {
            const int token = 8 * (g / 2) + 2 * j + g % 2, state = 8 * eight + 2 * t;
            store(to.to_tokens, j / 2, lane, 2 * (j % 2) + eight, power(state, token), power(state + 1, token));
        }
    poles.fill_decays(to, group, lane);
    if (lane < kHyenaGroup)
        to.gains[lane] = first + lane < poles.args.states ? poles.residue(first + lane) * power(lane, 1) : 0.f;
}

// ---- Products

__device__ __forceinline__ unsigned swapped(unsigned pair) {
    return pair << 16 | pair >> 16;
}
// sums += tile (16 rows x 32 tokens) * powers (32 tokens x 16 states); powers count from the row's end, or from its
// beginning if reversed.
template <bool kReversed, int kParts>
__device__ __forceinline__ void add_tokens(RowSums& sums, const TileParts<kParts>& tile,
                                           const unsigned (&powers)[kParts][2][32][4]) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
        uint4 right[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const uint4 x = *reinterpret_cast<const uint4*>(powers[part][eight][lane_of_warp() ^ (kReversed ? 3 : 0)]);
            right[part] = kReversed ? uint4{swapped(x.w), swapped(x.z), swapped(x.y), swapped(x.x)} : x;
        }
        for_products<kParts, kParts>([&](int left, int part) {
            unsigned a[4];
            tile.left(a, left, 0);
            mma_m16n8k16<DType::bf16>(sums[eight], a, right[part].x, right[part].y);
            tile.left(a, left, 1);
            mma_m16n8k16<DType::bf16>(sums[eight], a, right[part].z, right[part].w);
        });
    }
}
// sums += states (16 rows x 16) * powers (16 states x 32 tokens)
template <bool kReversed, int kParts>
__device__ __forceinline__ void add_states(TileSums& sums, const RowStates& states,
                                           const unsigned (&powers)[kParts][2][32][4]) {
    unsigned a[kParts][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float(&row_states)[2] = states[i % 2][i / 2];
        unsigned pair[kParts];
        split_pair(pair, row_states[0], row_states[1]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) a[part][i] = pair[part];
    }
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        uint4 right[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            const int half = kReversed ? 1 - j / 2 : j / 2, lane = lane_of_warp() ^ (kReversed ? 28 : 0);
            const uint4 x = *reinterpret_cast<const uint4*>(powers[part][half][lane]);
            right[part] = kReversed ? uint4{x.z, x.w, x.x, x.y} : x;
        }
        for_products<kParts, kParts>([&](int left, int part) {
            mma_m16n8k16<DType::bf16>(sums[j], a[left], right[part].x, right[part].y);
            mma_m16n8k16<DType::bf16>(sums[j + 1], a[left], right[part].z, right[part].w);
        });
    }
}

// ---- From row to row

__device__ __forceinline__ void load_states(LaneStates& to, const float (&from)[4]) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0][0] = x.x, to[0][1] = x.y, to[1][0] = x.z, to[1][1] = x.w;
}
__device__ __forceinline__ void store_states(float (&to)[4], const LaneStates& from) {
    *reinterpret_cast<float4*>(to) = {from[0][0], from[0][1], from[1][0], from[1][1]};
}

// Scans over the rows, in the direction of time. `added`: what each row adds to the states. `carried`: the states before the
// tile, on return those after it. Returns the states before each row. Reversed, "before" means later in the sequence.
template <bool kReversed>
__device__ __forceinline__ void scan_rows(RowStates& before, const RowSums& added, LaneStates& carried,
                                          const HyenaDecays& decays) {
    constexpr unsigned kAll = 0xffffffffu;
    constexpr int kFirst = kReversed ? 1 : 0, kSecond = 1 - kFirst;  // the half of the rows that comes first
    const int order = kReversed ? 7 - row_of_lane() : row_of_lane(), last = lane_of_warp() % 4 + (kReversed ? 0 : 28);
    const auto from = [](float x, int rows) {
        return kReversed ? __shfl_down_sync(kAll, x, 4 * rows) : __shfl_up_sync(kAll, x, 4 * rows);
    };
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int state = state_of_lane(eight, i);
            float sums[2] = {added[eight][i], added[eight][2 + i]}, totals[2], previous[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
#pragma unroll
                for (int step = 0; step < 3; ++step) {
                    const float other = from(sums[half], 1 << step);
                    if (order >= 1 << step) sums[half] = fmaf(decays.doubled[step][state], other, sums[half]);
                }
                totals[half] = __shfl_sync(kAll, sums[half], last);
                previous[half] = from(sums[half], 1);
            }
            const float decay = decays.half[state], row = decays.rows[order][state], x = carried[eight][i];
            before[kFirst][eight][i] = fmaf(row, x, order > 0 ? previous[kFirst] : 0.f);
            before[kSecond][eight][i] = fmaf(row, fmaf(decay, x, totals[kFirst]), order > 0 ? previous[kSecond] : 0.f);
            carried[eight][i] = LongFactor(decays.tile[0][state], decays.tile[1][state])
                                    .times_plus(x, fmaf(decay, totals[kFirst], totals[kSecond]));
        }
}
// A row adds to the gradients of states R p times its tokens' sum.
__device__ __forceinline__ void multiply_by_gains(RowSums& sums, const float (&gains)[kHyenaGroup]) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[eight][i] *= gains[state_of_lane(eight, i % 2)];
}

// Calls visit(eight, i, state) for the lane's states of a group, as far as they exist.
__device__ __forceinline__ void for_states(int group, int states, auto&& visit) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int state = group * kHyenaGroup + state_of_lane(eight, i);
            if (state < states) visit(eight, i, state);
        }
}

}  // namespace gdn_cuda::conv
