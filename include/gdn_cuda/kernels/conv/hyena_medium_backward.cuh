// conv/hyena_medium_backward: gradients of conv/hyena_medium. With z = h * u + D u, so that y = x2 mask z:
//
//     dz = dy x2 mask,    du_t = sum_j h_j dz_{t+j} + D dz_t (+ the gradient of a state that holds u_t)
//     dx1 = du v,    dv = du x1,    dx2 = dy mask z,    dh_j = sum_t dz_t u_{t-j} (dh_0 of a channel is also dD)
//
// A warp iterates backwards over its tokens of one channel in tiles of 512. It keeps dz and u in shared memory in bf16
// parts: dz next to that of the following tokens, u next to that of the preceding tokens, for which it computes u one tile
// ahead (two from 129 taps on). Then z is the product of u by the Toeplitz matrix of the taps, du that of dz by the
// transposed matrix (toeplitz/band.cuh), and dh a correlation (toeplitz/tap_correlation.cuh). The sums of dh stay in shared
// memory until the last tile and are then written; the host adds those of segments, sequences and a group's channels: the
// same bits in every run. If channels are contiguous in memory, the warps of a block have adjacent channels and the same
// tokens (hyena_medium/tile.cuh).
//
// Shared memory, per warp: u and dz of 1024 tokens (2048 from 129 taps on), a table of taps, sums of their gradients, and
// sums of a tile.
//
// Bound: memory up to 128 taps, 14 bytes an element in bf16 and 28 in fp32; 260 mma a tile in bf16, 324 in fp16, 648 in
// fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium/tile.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/tap_correlation.cuh>

namespace gdn_cuda::conv {

// Access: MediumRows or MediumColumns.
template <HyenaMediumBackwardConfig kConfig, class Access>
struct HyenaMediumBackwardWarp {
    static constexpr HyenaMediumConfig kForward = kConfig.forward();
    static constexpr bool kSeparateSums = kForward.io == DType::f32;
    static constexpr int kAhead = (band_rows(kForward.taps) * kBandRow + kTileTokens - 1) / kTileTokens * kTileTokens;
    // Whether the next tile's loads are in flight during this one's products. Warps that wait for each other need that; in fp32
    // it would take too many registers. Otherwise they come after the last use of this tile's: loads of both share scoreboards,
    // so that use would wait for them.
    static constexpr bool kLoadsEarly = kForward.columns && kForward.few_taps() && kForward.io != DType::f32;
    using T = Storage<kForward.io>;
    using Own = typename Access::Own;
    using Parts = typename Access::Parts;
    using Shared = HyenaMediumBackwardShared<kConfig>;

    const HyenaMediumBackwardArgs& args;
    Shared& shared;
    Access access;
    HyenaSegment segment;
    const HyenaArgs& forward = args.forward;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }
    __device__ __forceinline__ bool exists() const { return !kForward.columns || segment.column < forward.channels; }
    __device__ __forceinline__ int taps() const { return forward.filter.taps; }
    __device__ __forceinline__ int rows() const { return band_rows(taps()); }
    __device__ __forceinline__ int reach() const { return rows() * kBandRow; }
    __device__ __forceinline__ auto u_ring() const { return band_ring(shared.u, access.flip()); }
    __device__ __forceinline__ auto dz_ring() const { return band_ring(shared.dz, access.flip()); }

    // ---- dz and u

    __device__ __forceinline__ void store_dz(const Access& tiles, const Own& dy, const Own& x2, int tile) const {
        if (forward.mask.values.data == nullptr) {
            tiles.template store_parts<&Shared::dz>(tiles.product(dy, x2), tile);
            return;
        }
        float dz[kOwn];
        multiply(dz, dy, x2);
        tiles.multiply_by_mask(dz, forward.mask, tile);
        tiles.template store_parts<&Shared::dz>(tiles.parts_of(dz), tile);
    }
    // dz of the tokens after the segment; zeros after the sequence.
    __device__ __forceinline__ void load_dz_after(int begin) const {
        Access tiles = access;
        tiles.end = min(forward.tokens, segment.end + reach());
#pragma unroll 1
        for (int tile = begin; tile < begin + reach(); tile += kTileTokens) {
            Own dy, x2;
            tiles.load(dy, args.dy, tile);
            tiles.load(x2, forward.x2, tile);
            store_dz(tiles, dy, x2, tile);
        }
    }
    // Loads the tokens of a tile of u that the segment's outputs depend on.
    __device__ __forceinline__ void load_gated(Own& x1, Own& v, int tile) const {
        const int begin = max(segment.first - reach(), 0);
        access.load_from(x1, forward.x1, tile, begin);
        access.load_from(v, forward.v, tile, begin);
    }
    // x1 and v as loaded by load_gated.
    __device__ __forceinline__ void store_u(const Own& x1, const Own& v, int tile) const {
        if (tile < 0) {
            store_initial(tile);
        } else {
            access.template store_parts<&Shared::u>(access.product(x1, v), tile);
        }
    }
    // u of tokens before the sequence, from the initial state.
    __device__ __forceinline__ void store_initial(int tile) const {
#pragma unroll 1
        for (int i = lane(); i < kTileTokens / 2; i += 32) {
            const auto value = [&](int token) {
                return exists() ? initial_at(forward.initial, segment.batch, segment.column, taps() - 1, -token) : 0.f;
            };
            store_pair(u_ring(), tile / 2 + i, value(tile + 2 * i), value(tile + 2 * i + 1));
        }
    }

    // ---- Gradients

    // Adds the gradient of the final state to du of the last tokens, in shared memory.
    __device__ __forceinline__ void add_last_state_gradient(int tile) const {
        const int length = taps() - 1, first = forward.tokens - length;
        if (tile + kTileTokens <= first || !exists()) return;
        const HyenaInitial& state = args.grad_state;
        const float* const from =
            static_cast<const float*>(state.values.data) + segment.batch * state.batch + segment.column * state.channel;
        __syncwarp();
#pragma unroll 1
        for (int i = lane(); i < kTileTokens; i += 32) {
            const int position = tile + i - first;
            if (position >= 0 && position < length)
                shared.scratch[Shared::kSumsOfDu + place_of_sum(i, access.flip())] += from[position * state.position];
        }
    }
    // The sums of z and of du, written to shared memory.
    __device__ __forceinline__ void sums_of_z(int tile, float residual) const {
        TileSums sums = {};
        add_band<false, kSeparateSums>(sums, u_ring(), shared.taps, tile, rows(), residual);
        store_sums(shared.scratch + Shared::kSumsOfZ, sums, access.flip());
    }
    __device__ __forceinline__ void sums_of_du(int tile, float residual) const {
        TileSums sums = {};
        add_band<true, kSeparateSums>(sums, dz_ring(), shared.taps, tile, rows(), residual);
        store_sums(shared.scratch + Shared::kSumsOfDu, sums, access.flip());
        add_last_state_gradient(tile);
    }
    __device__ __forceinline__ void store_product(const float (&x)[kOwn], const Own& y, const HyenaTensor& to, int tile) const {
        Own product;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) product.set(i, x[i] * y[i]);
        access.store(product, to, tile);
    }
    __device__ __forceinline__ void correlate(int tile) const {
        const auto add = [&](int lag) {
            add_correlation(shared.dtaps + lag, shared.scratch, u_ring(), dz_ring(), tile / kEight, lag,
                            min(taps() - lag, kCorrelatedTaps));
            __syncwarp();
        };
        if constexpr (kForward.few_taps()) {
            add(0);
        } else {
#pragma unroll 1
            for (int lag = 0; lag < taps(); lag += kCorrelatedTaps) add(lag);
        }
    }
    __device__ __forceinline__ void write_tap_sums() const {
        if (!exists()) return;
        const i64 row =
            (static_cast<i64>(segment.batch) * forward.segments + segment.index) * forward.channels + segment.column;
        float* const to = args.dtaps + row * taps();
#pragma unroll 1
        for (int lag = lane(); lag < taps(); lag += 32) to[lag] = shared.dtaps[lag];
    }
    // Writes du of the tokens before the sequence; called by all threads.
    __device__ __forceinline__ void write_initial_gradient(float residual) const {
        const int length = taps() - 1;
#pragma unroll 1
        for (int tile = -kTileTokens; tile + kTileTokens > -length; tile -= kTileTokens) {
            __syncwarp();
#pragma unroll 1
            for (int i = lane(); i < kTileTokens / 2; i += 32) store_pair(dz_ring(), tile / 2 + i, 0.f, 0.f);
            __syncwarp();
            sums_of_du(tile, residual);
            __syncwarp();
            if (!exists()) continue;
            float* const to = args.dinitial + (static_cast<i64>(segment.batch) * forward.channels + segment.column) * length;
#pragma unroll 1
            for (int i = lane(); i < kTileTokens; i += 32) {
                const int position = tile + i + length;
                if (position >= 0) to[position] = shared.scratch[Shared::kSumsOfDu + place_of_sum(i, access.flip())];
            }
        }
    }

    __device__ __forceinline__ void run() const {
        const int tiles = (segment.end - segment.first + kTileTokens - 1) / kTileTokens;
        const int last = segment.first + (tiles - 1) * kTileTokens;
        const float residual = fill_taps(shared.taps, forward.filter, segment.column, rows(), exists());
        for (int lag = lane(); lag < kForward.taps; lag += 32) shared.dtaps[lag] = 0.f;
        load_dz_after(last + kTileTokens);
        Own x1, v, x2, dy;
        if (tiles > 0) {
#pragma unroll 1
            for (int tile = last; tile > last - kAhead; tile -= kTileTokens) {
                load_gated(x1, v, tile);
                store_u(x1, v, tile);
            }
            access.load(dy, args.dy, last);
            access.load(x2, forward.x2, last);
            load_gated(x1, v, last - kAhead);
        }
#pragma unroll 1
        for (int tile = last; tile >= segment.first; tile -= kTileTokens) {
            store_u(x1, v, tile - kAhead);
            store_dz(access, dy, x2, tile);
            access.sync();
            access.load(x1, forward.x1, tile);
            access.load(v, forward.v, tile);
            correlate(tile);
            const auto load_factors = [&](Own& next_x1, Own& next_v) {
                if (tile <= segment.first) return;
                load_gated(next_x1, next_v, tile - kTileTokens - kAhead);
                access.load(x2, forward.x2, tile - kTileTokens);
            };
            const auto load_dy = [&](Own& next_dy) {
                if (tile > segment.first) access.load(next_dy, args.dy, tile - kTileTokens);
            };
            Own next_x1, next_v, next_dy;
            if constexpr (kLoadsEarly) load_factors(next_x1, next_v), load_dy(next_dy);
            sums_of_z(tile, residual);
            sums_of_du(tile, residual);
            access.sync();

            float values[kOwn];
            access.load_sums(values, Shared::kSumsOfDu);
            store_product(values, v, args.dx1, tile);
            store_product(values, x1, args.dv, tile);
            if constexpr (!kLoadsEarly) load_factors(x1, v);
            access.load_sums(values, Shared::kSumsOfZ);
            access.multiply_by_mask(values, forward.mask, tile);
            store_product(values, dy, args.dx2, tile);
            if constexpr (kLoadsEarly)
                x1 = next_x1, v = next_v, dy = next_dy;
            else
                load_dy(dy);
        }
        access.sync();
        write_tap_sums();
        if (segment.first == 0 && args.dinitial != nullptr) write_initial_gradient(residual);
    }
};

template <HyenaMediumBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), blocks_without_spills(kConfig.blocks_of_sm()))
    hyena_medium_backward(const __grid_constant__ HyenaMediumBackwardArgs args) {
    using T = Storage<kConfig.io>;
    using Shared = HyenaMediumBackwardShared<kConfig>;
    constexpr int kWarps = kConfig.warps(), kParts = kConfig.forward().parts();
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaMediumBackwardSharedPlan<kConfig>*>(memory);
    Shared& own = shared.warps[threadIdx.x / 32];
    const HyenaSegment segment = hyena_segment<kConfig.columns, kWarps>(args.forward);
    if (!segment.exists(args.forward)) return;
    if constexpr (kConfig.columns) {
        using Access = MediumColumns<T, kWarps, kParts, Shared>;
        const Access access(shared.warps, segment, args.forward.channels);
        HyenaMediumBackwardWarp<kConfig, Access>{args, own, access, segment}.run();
    } else {
        using Access = MediumRows<T, kParts, Shared>;
        const Access access(own, segment, args.forward.vectors);
        HyenaMediumBackwardWarp<kConfig, Access>{args, own, access, segment}.run();
    }
}

}  // namespace gdn_cuda::conv
