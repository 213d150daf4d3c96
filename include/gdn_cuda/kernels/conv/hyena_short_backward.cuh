// conv/hyena_short_backward: the gradients of conv/hyena_short, tokens contiguous in memory. With g the gradient of y,
//
//     dz_t = g_t mask_t x2_t                dx2_t = g_t mask_t z_t
//     du_t = sum_j h_j dz_{t+j} (+ bias dz_t)   dx1 = du v   dv = du x1
//     dh_j = sum_t dz_t u_{t-j}             dbias = sum_t dz_t (u_t)
//
// where u and z are recomputed from x1, v and the taps.
//
// A warp iterates over its tokens of one channel in tiles of 256, eight tokens per lane. It needs u of preceding lanes,
// which come by shuffles as in the forward pass, and dz of following lanes. So the last lane of a tile (the last four from 9
// taps on) only supplies dz, and the next tile begins with its tokens. The vectors of the next tile are prefetched. A lane
// accumulates its products for each tap in registers; at the end the warp reduces them and writes one sum per tap.
//
// Shared memory, per warp: the taps, newest first, and a stage for rows without aligned vectors.
//
// Bound: memory, 14 bytes a token in bf16 and 28 in fp32 (x1, x2, v and g are read, three gradients written); from 20 taps
// on in bf16 arithmetic, three FMAs per tap.
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
    const HyenaSegment& segment;
    const HyenaArgs& forward = args.forward;
    const int batch = segment.batch, channel = segment.column;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }

    __device__ __forceinline__ void load(Tile& to, const HyenaTensor& x, int tile) const {
        to.load(HyenaRow<T>(x, batch, channel), tile, forward.tokens, forward.vectors, shared.stage);
    }
    __device__ __forceinline__ void load(Inputs& to, int tile) const {
        load(to.x1, forward.x1, tile);
        load(to.v, forward.v, tile);
        load(to.x2, forward.x2, tile);
        load(to.grad, args.dy, tile);
    }
    // Stores the tokens that lanes own, below `segment.end`.
    __device__ __forceinline__ void store(const Tile& y, const HyenaTensor& to, int tile) const {
        const HyenaRow<T> row(to, batch, channel);
        if (forward.vectors && tile + kStep <= segment.end) {
            if (lane() < kOwners) y.eights[0].store(row.data + Tile::first(tile, 0));
        } else {
            y.store(row, tile, min(tile + kStep, segment.end), false, shared.stage);
        }
    }
    // u of the owners of the tile before the first one, where the filter reaches it.
    __device__ __forceinline__ void load_before(float (&u)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            const int before = (kOwners - lane()) * kEight - i;  // distance to the segment's first token
            const bool is_seen = before > 0 && before < forward.filter.taps;
            u[i] = is_seen ? u_at<T>(forward, batch, channel, segment.first - before) : 0.f;
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
                // If a first lane needs the previous tile's value of an owner, no other owner needs its value of this tile.
                const float sent = lane() >= kOwners - lanes ? u_before[i] : u[i];
                const int from = lane() >= lanes ? lane() - lanes : kOwners + lane() - lanes;
                window[kHalo - lanes * kEight + i] = __shfl_sync(0xffffffffu, sent, from);
            }
        }
    }
    // For owners: window[i + j] is dz of j tokens after the lane's token i.
    __device__ __forceinline__ void fill_after(float (&window)[kEight + kHalo], const float (&dz)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            window[i] = dz[i];
#pragma unroll
            for (int lanes = 1; lanes <= kReach; ++lanes)
                window[lanes * kEight + i] = __shfl_down_sync(0xffffffffu, dz[i], lanes);
        }
    }
    // Computes z, and adds the lane's products for each tap.
    __device__ __forceinline__ void convolve(float (&z)[kEight], float (&dtaps)[kConfig.taps], const float (&dz)[kEight],
                                             const float (&window)[kHalo + kEight]) const {
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const float tap = shared.taps[lag];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                z[i] = fmaf(tap, window[kHalo + i - lag], z[i]);
                dtaps[lag] = fmaf(dz[i], window[kHalo + i - lag], dtaps[lag]);
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
        float before[kEight], dtaps[kConfig.taps] = {}, dbias = 0.f;
        load_before(before);
        Inputs next;
        load(next, segment.first);
#pragma unroll 1
        for (int tile = segment.first; tile < segment.end; tile += kStep) {
            const Inputs now = next;
            if (tile + kStep < segment.end) load(next, tile + kStep);
            float grad[kEight], dz[kEight], z[kEight];
            if (forward.mask.values.data != nullptr) stage_mask(shared.stage, forward.mask, batch, tile, forward.tokens);
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                const float mask = forward.mask.values.data == nullptr ? 1.f : shared.stage.values[lane() * kEight + i];
                grad[i] = now.grad.eights[0][i] * mask;
                dz[i] = grad[i] * now.x2.eights[0][i];
            }
            {
                float u[kEight], window[kHalo + kEight];
#pragma unroll
                for (int i = 0; i < kEight; ++i) {
                    u[i] = now.x1.eights[0][i] * now.v.eights[0][i];
                    z[i] = gated ? bias * u[i] : bias;
                    dbias = fmaf(dz[i], gated ? u[i] : 1.f, dbias);
                }
                fill_before(window, u, before);
                convolve(z, dtaps, dz, window);
#pragma unroll
                for (int i = 0; i < kEight; ++i) before[i] = u[i];
            }
            Tile result;
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(grad[i] * z[i]);
            store(result, args.dx2, tile);
            float du[kEight], window[kEight + kHalo];
            fill_after(window, dz);
            correlate(du, window, bias);
            if (tile + kStep > forward.tokens - (forward.filter.taps - 1))
#pragma unroll
                for (int i = 0; i < kEight; ++i) du[i] += last_state_gradient(args, batch, channel, Tile::first(tile, 0) + i);
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(du[i] * now.v.eights[0][i]);
            store(result, args.dx1, tile);
#pragma unroll
            for (int i = 0; i < kEight; ++i) result.eights[0].items[i] = from_float<T>(du[i] * now.x1.eights[0][i]);
            store(result, args.dv, tile);
        }
        write_sums(dtaps, dbias);
    }
    __device__ __forceinline__ void write_sums(const float (&dtaps)[kConfig.taps], float dbias) const {
        const i64 at = sums_of(forward, segment, channel);
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, forward.filter.taps)) break;
            const float sum = group_sum<32>(lane() < kOwners ? dtaps[lag] : 0.f);
            if (lane() == lag) args.dweight[at * forward.filter.taps + forward.filter.taps - 1 - lag] = sum;
        }
        const float sum = group_sum<32>(lane() < kOwners ? dbias : 0.f);
        if (lane() == 0) args.dbias[at] = sum;
    }
    __device__ __forceinline__ float dz_at(int token) const {
        const float mask = forward.mask.values.data == nullptr ? 1.f : mask_at(forward.mask, batch, token);
        return HyenaRow<T>(args.dy, batch, channel).at(token) * mask * HyenaRow<T>(forward.x2, batch, channel).at(token);
    }
    // Writes the gradient of the initial state, one value per lane.
    __device__ __forceinline__ void write_initial_gradient() const {
        const int length = forward.filter.taps - 1, token = lane() - length;
        if (token >= 0) return;
        float sum = last_state_gradient(args, batch, channel, token);
#pragma unroll 4
        for (int lag = -token; lag < forward.filter.taps; ++lag)
            if (token + lag < forward.tokens) sum = fmaf(shared.taps[lag], dz_at(token + lag), sum);
        args.dinitial[(static_cast<i64>(batch) * forward.channels + channel) * length + lane()] = sum;
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads,
                                  blocks_without_spills(HyenaShortBackwardTile{kConfig.taps}.blocks(kConfig.io)))
    hyena_short_backward(const __grid_constant__ HyenaShortBackwardArgs args) {
    __shared__ HyenaShortShared<kConfig> warps[kHyenaShortWarps];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of_warp();
    const i64 index = static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp;
    const HyenaSegment segment = HyenaSegment::of(args.forward, index, args.forward.channels);
    if (!segment.exists(args.forward)) return;
    HyenaShortShared<kConfig>& shared = warps[warp];
    if (lane < args.forward.filter.taps) shared.taps[lane] = correlation_tap(args.forward.filter, segment.column, lane);
    __syncwarp();
    const HyenaShortBackwardWarp<kConfig> backward{args, shared, segment};
    backward.run();
    if (segment.index == 0 && args.dinitial != nullptr) backward.write_initial_gradient();
}

}  // namespace gdn_cuda::conv
