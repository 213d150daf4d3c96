// conv/hyena_short_backward: the gradients of conv/hyena_short, tokens are neighbours in memory. With g the gradient of y,
//
//     dz_t = g_t mask_t x2_t                dx2_t = g_t mask_t z_t
//     du_t = sum_j h_j dz_{t+j} (+ bias dz_t)   dx1 = du v   dv = du x1
//     dh_j = sum_t dz_t u_{t-j}             dbias = sum_t dz_t (u_t)
//
// where u and z are computed again from x1, v and the taps.
//
// A warp walks over its tokens of one channel in tiles of 256, with eight tokens a lane. Filtering needs u of the lanes before,
// which come by shuffles as in the forward pass, and dz of the lanes behind. So the last lane of a tile (the last four from 9
// taps on) only supplies dz: the next tile begins with its tokens. The vectors of the next tile are in flight meanwhile. A lane
// adds up its products for each tap in registers; at the end the warp adds up its lanes' and writes one sum for each tap.
//
// Shared memory, of each warp: the taps, newest first, and a stage for rows without aligned vectors.
//
// Bound: memory, 14 bytes a token in bf16 and 28 in fp32 (x1, x2, v and g are read, three gradients written), and from 20 taps
// on in bf16 arithmetic: three FMAs for each tap.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_short/backward_common.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortBackwardWarp {
    using T = Storage<kConfig.io>;
    static constexpr HyenaShortBackwardTile kTile{kConfig.taps};
    static constexpr int kReach = kTile.halo_lanes(), kOwners = 32 - kReach, kStep = kTile.step();
    static constexpr int kHalo = kReach * kEight;

    using Tile = TokenTile<T, 1>;
    static_assert(Tile::kTokens == kStep + kHalo);

    struct Inputs {
        Tile x1, x2, v, grad;
    };

    const HyenaShortBackwardArgs& args;
    HyenaShortShared<kConfig>& shared;
    const HyenaShare& share;
    const HyenaArgs& forward = args.forward;
    const int batch = share.batch, channel = share.column;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }

    __device__ __forceinline__ void load(Tile& to, const HyenaTensor& x, int tile) const {
        to.load(HyenaRow<T>(x, batch, channel), tile, forward.tokens, forward.vectors, shared.stage);
    }
    __device__ __forceinline__ void load(Inputs& to, int tile) const {
        load(to.x1, forward.x1, tile);
        load(to.v, forward.v, tile);
        load(to.x2, forward.x2, tile);
        load(to.grad, args.of_y, tile);
    }
    // Of the lanes that own their tokens, below `share.end`.
    __device__ __forceinline__ void store(const Tile& y, const HyenaTensor& to, int tile) const {
        const HyenaRow<T> row(to, batch, channel);
        if (forward.vectors && tile + kStep <= share.end) {
            if (lane() < kOwners) y.eights[0].store(row.data + Tile::first(tile, 0));
        } else {
            y.store(row, tile, min(tile + kStep, share.end), false, shared.stage);
        }
    }
    // u of the owners of the tile before the first one, as far as it is met.
    __device__ __forceinline__ void load_before(float (&u)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            const int before = (kOwners - lane()) * kEight - i;  // tokens before the share
            const bool is_met = before > 0 && before < forward.filter.taps;
            u[i] = is_met ? u_at<T>(forward, batch, channel, share.first - before) : 0.f;
        }
    }
    // For owners: window[kHalo + i - j] is u of j tokens before the lane's token i.
    __device__ __forceinline__ void fill_before(float (&window)[kHalo + kEight], const float (&u)[kEight],
                                                const float (&u_before)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            window[kHalo + i] = u[i];
#pragma unroll
            for (int lanes = 1; lanes <= kReach; ++lanes) {
                // An owner's number that the first lanes ask for is asked for by no other owner.
                const float given = lane() >= kOwners - lanes ? u_before[i] : u[i];
                const int from = lane() >= lanes ? lane() - lanes : kOwners + lane() - lanes;
                window[kHalo - lanes * kEight + i] = __shfl_sync(0xffffffffu, given, from);
            }
        }
    }
    // For owners: window[i + j] is dz of j tokens behind the lane's token i.
    __device__ __forceinline__ void fill_behind(float (&window)[kEight + kHalo], const float (&dz)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            window[i] = dz[i];
#pragma unroll
            for (int lanes = 1; lanes <= kReach; ++lanes)
                window[lanes * kEight + i] = __shfl_down_sync(0xffffffffu, dz[i], lanes);
        }
    }
    // z, and the lane's products for each tap.
    __device__ __forceinline__ void convolve(float (&z)[kEight], float (&of_taps)[kConfig.taps], const float (&dz)[kEight],
                                             const float (&window)[kHalo + kEight]) const {
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const float tap = shared.taps[lag];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                z[i] = fmaf(tap, window[kHalo + i - lag], z[i]);
                of_taps[lag] = fmaf(dz[i], window[kHalo + i - lag], of_taps[lag]);
            }
        }
    }
    __device__ __forceinline__ void correlate(float (&du)[kEight], const float (&window)[kEight + kHalo], float bias) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) du[i] = forward.filter.gated_bias ? bias * window[i] : 0.f;
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const float tap = shared.taps[lag];
#pragma unroll
            for (int i = 0; i < kEight; ++i) du[i] = fmaf(tap, window[i + lag], du[i]);
        }
    }
    __device__ __forceinline__ void run() const {
        const float bias = bias_of(forward.filter, channel);
        const bool gated = forward.filter.gated_bias;
        float before[kEight], of_taps[kConfig.taps] = {}, of_bias = 0.f;
        load_before(before);
        Inputs next;
        load(next, share.first);
#pragma unroll 1
        for (int tile = share.first; tile < share.end; tile += kStep) {
            const Inputs now = next;
            if (tile + kStep < share.end) load(next, tile + kStep);
            float grad[kEight], dz[kEight], z[kEight];
            if (forward.mask.numbers.data != nullptr) stage_mask(shared.stage, forward.mask, batch, tile, forward.tokens);
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                const float mask = forward.mask.numbers.data == nullptr ? 1.f : shared.stage.numbers[lane() * kEight + i];
                grad[i] = now.grad.eights[0][i] * mask;
                dz[i] = grad[i] * now.x2.eights[0][i];
            }
            {
                float u[kEight], window[kHalo + kEight];
#pragma unroll
                for (int i = 0; i < kEight; ++i) {
                    u[i] = now.x1.eights[0][i] * now.v.eights[0][i];
                    z[i] = gated ? bias * u[i] : bias;
                    of_bias = fmaf(dz[i], gated ? u[i] : 1.f, of_bias);
                }
                fill_before(window, u, before);
                convolve(z, of_taps, dz, window);
#pragma unroll
                for (int i = 0; i < kEight; ++i) before[i] = u[i];
            }
            Tile result;
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(grad[i] * z[i]);
            store(result, args.of_x2, tile);
            float du[kEight], window[kEight + kHalo];
            fill_behind(window, dz);
            correlate(du, window, bias);
            if (tile + kStep > forward.tokens - (forward.filter.taps - 1))
#pragma unroll
                for (int i = 0; i < kEight; ++i) du[i] += of_last_at(args, batch, channel, Tile::first(tile, 0) + i);
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(du[i] * now.v.eights[0][i]);
            store(result, args.of_x1, tile);
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(du[i] * now.x1.eights[0][i]);
            store(result, args.of_v, tile);
        }
        write_sums(of_taps, of_bias);
    }
    __device__ __forceinline__ void write_sums(const float (&of_taps)[kConfig.taps], float of_bias) const {
        const i64 at = sums_of(forward, share, channel);
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const float sum = group_sum<32>(lane() < kOwners ? of_taps[lag] : 0.f);
            if (lane() == lag) args.of_weight[at * forward.filter.taps + forward.filter.taps - 1 - lag] = sum;
        }
        const float sum = group_sum<32>(lane() < kOwners ? of_bias : 0.f);
        if (lane() == 0) args.of_bias[at] = sum;
    }
    __device__ __forceinline__ float dz_at(int token) const {
        const float mask = forward.mask.numbers.data == nullptr ? 1.f : mask_at(forward.mask, batch, token);
        return HyenaRow<T>(args.of_y, batch, channel).at(token) * mask * HyenaRow<T>(forward.x2, batch, channel).at(token);
    }
    // The gradient of the initial state, a number a lane.
    __device__ __forceinline__ void write_initial() const {
        const int length = forward.filter.taps - 1, token = lane() - length;
        if (token >= 0) return;
        float sum = of_last_at(args, batch, channel, token);
#pragma unroll 4
        for (int lag = -token; lag < forward.filter.taps; ++lag)
            if (token + lag < forward.tokens) sum = fmaf(shared.taps[lag], dz_at(token + lag), sum);
        args.of_initial[(static_cast<i64>(batch) * forward.channels + channel) * length + lane()] = sum;
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads,
                                  blocks_without_spills(HyenaShortBackwardTile{kConfig.taps}.blocks(kConfig.io)))
    hyena_short_backward(const __grid_constant__ HyenaShortBackwardArgs args) {
    __shared__ HyenaShortShared<kConfig> warps[kHyenaShortWarps];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of_warp();
    const i64 number = static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp;
    const HyenaShare share = HyenaShare::of(args.forward, number, args.forward.channels);
    if (!share.exists(args.forward)) return;
    HyenaShortShared<kConfig>& shared = warps[warp];
    if (lane < args.forward.filter.taps) shared.taps[lane] = correlation_tap(args.forward.filter, share.column, lane);
    __syncwarp();
    const HyenaShortBackwardWarp<kConfig> walk{args, shared, share};
    walk.run();
    if (share.segment == 0 && args.of_initial != nullptr) walk.write_initial();
}

}  // namespace gdn_cuda::conv
