// conv/hyena_short: y_t = x2_t mask_t (sum_j h_j u_{t-j} + bias), u = x1 * v, up to 32 taps, tokens contiguous in memory.
//
// A warp iterates over its tokens of one channel in tiles of 256. A lane computes eight consecutive outputs from its own
// eight values of u and those of the previous lane (up to 8 taps) or four lanes, by shuffles; the first lanes get those of
// the previous tile's last lanes, which keep them. The vectors of the next tile are prefetched.
//
// Shared memory, per warp: the taps, newest first, and a stage for rows without aligned vectors.
//
// Bound: memory, 8 bytes an output in bf16 and 16 in fp32 (x1, x2, v and y): 86 % of an H200's memory bandwidth with 7 taps
// of 4096 x 65536 bf16 values. A tap costs one FMA an output, so 32 taps still take less time than fp32's memory traffic.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/common.cuh>
#include <gdn_cuda/kernels/conv/hyena_short/plan.cuh>

namespace gdn_cuda::conv {

template <HyenaShortConfig kConfig>
struct HyenaShortWarp {
    using T = Storage<kConfig.io>;
    static constexpr int kReach = (kConfig.taps - 1 + kEight - 1) / kEight;  // preceding lanes that a lane's outputs depend on
    static constexpr int kBefore = kReach * kEight;

    using Tile = TokenTile<T, 1>;
    static_assert(Tile::kTokens == HyenaShortConfig::tile());

    struct Inputs {
        Tile x1, x2, v;
    };

    const HyenaArgs& args;
    HyenaShortShared<kConfig>& shared;
    int batch, channel;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }

    __device__ __forceinline__ void load(Inputs& to, int tile, int end) const {
        to.x1.load(HyenaRow<T>(args.x1, batch, channel), tile, end, args.vectors, shared.stage);
        to.v.load(HyenaRow<T>(args.v, batch, channel), tile, end, args.vectors, shared.stage);
        to.x2.load(HyenaRow<T>(args.x2, batch, channel), tile, end, args.vectors, shared.stage);
    }
    // u of the tile before the first one, where the filter reaches it.
    __device__ __forceinline__ void load_before(float (&u)[kEight], int first) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            const int before = (32 - lane()) * kEight - i;  // distance to `first`, in tokens
            u[i] = before < args.filter.taps ? u_at<T>(args, batch, channel, first - before) : 0.f;
        }
    }
    // window[kBefore + i - j] is u of j tokens before the lane's token i.
    __device__ __forceinline__ void fill(float (&window)[kBefore + kEight], const float (&u)[kEight],
                                         const float (&u_before)[kEight]) const {
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
            window[kBefore + i] = u[i];
#pragma unroll
            for (int lanes = 1; lanes <= kReach; ++lanes) {
                const float sent = lane() >= 32 - lanes ? u_before[i] : u[i];
                window[kBefore - lanes * kEight + i] = __shfl_sync(0xffffffffu, sent, (lane() - lanes) & 31);
            }
        }
    }
    __device__ __forceinline__ void convolve(float (&z)[kEight], const float (&window)[kBefore + kEight]) const {
#pragma unroll
        for (int lag = 0; lag < kConfig.taps; ++lag) {
            if (kConfig.ends_before(lag, args.filter.taps)) break;
            const float tap = shared.taps[lag];
#pragma unroll
            for (int i = 0; i < kEight; ++i) z[i] = fmaf(tap, window[kBefore + i - lag], z[i]);
        }
    }
    __device__ __forceinline__ void run(int begin, int end) const {
        const float bias = bias_of(args.filter, channel);
        const bool gated = args.filter.gated_bias;
        float u[kEight], before[kEight];
        load_before(before, begin);
        Inputs next;
        load(next, begin, end);
#pragma unroll 1
        for (int tile = begin; tile < end; tile += kConfig.tile()) {
            const Inputs now = next;
            if (tile + kConfig.tile() < end) load(next, tile + kConfig.tile(), end);
            float window[kBefore + kEight], z[kEight];
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                u[i] = now.x1.eights[0][i] * now.v.eights[0][i];
                z[i] = gated ? bias * u[i] : bias;
            }
            fill(window, u, before);
            convolve(z, window);
            if (args.mask.values.data != nullptr) {
                stage_mask(shared.stage, args.mask, batch, tile, end);
#pragma unroll
                for (int i = 0; i < kEight; ++i) z[i] *= shared.stage.values[lane() * kEight + i];
            }
            Tile y;
#pragma unroll
            for (int i = 0; i < kEight; ++i) {
                y.eights[0].items[i] = from_float<T>(now.x2.eights[0][i] * z[i]);
                before[i] = u[i];
            }
            y.store(HyenaRow<T>(args.y, batch, channel), tile, end, args.vectors, shared.stage);
        }
    }
};

template <HyenaShortConfig kConfig>
__global__ void __launch_bounds__(kHyenaShortThreads, blocks_without_spills(kConfig.blocks_an_sm()))
    hyena_short(const __grid_constant__ HyenaArgs args) {
    __shared__ HyenaShortShared<kConfig> warps[kHyenaShortWarps];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of_warp();
    const i64 index = static_cast<i64>(blockIdx.x) * kHyenaShortWarps + warp;
    const HyenaSegment segment = HyenaSegment::of(args, index, args.channels);
    if (!segment.exists(args)) return;
    HyenaShortShared<kConfig>& shared = warps[warp];
    if (lane < args.filter.taps) shared.taps[lane] = correlation_tap(args.filter, segment.column, lane);
    __syncwarp();
    HyenaShortWarp<kConfig>{args, shared, segment.batch, segment.column}.run(segment.first, segment.end);
    if (segment.is_last(args)) write_last_inputs<Storage<kConfig.io>>(args, segment.batch, segment.column, lane, 32);
}

}  // namespace gdn_cuda::conv
