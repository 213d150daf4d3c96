// conv/hyena_medium_backward: gradients of conv/hyena_medium. With z = h * u + D u, so that y = x2 mask z:
//
//     dz = dy x2 mask,    du_t = sum_j h_j dz_{t+j} + D dz_t (+ the gradient of a state that u_t is in)
//     dx1 = du v,    dv = du x1,    dx2 = dy mask z,    dh_j = sum_t dz_t u_{t-j} (dh_0 of a channel is dD, too)
//
// A warp walks backwards over its tokens of one channel in tiles of 512. It keeps dz and u in shared memory in bf16 parts, dz
// beside that of the tokens behind the tile, u beside that of the tokens before, for which u is computed one tile ahead (two
// from 129 taps on). Then z is the product of u by the Toeplitz matrix of the taps, du that of dz by the transposed matrix
// (toeplitz/band.cuh), and dh a correlation (toeplitz/tap_correlation.cuh), whose sums are kept in shared memory and written
// behind the last tile, for the host to add those of shares, sequences and a group's channels: the same bits in every run.
// Channels that are neighbours in memory are walked over by the warps of a block together (hyena_medium/tile.cuh).
//
// Shared memory, of each warp: u and dz of 1024 tokens (2048 from 129 taps on), a table of taps, sums of their gradients, and
// sums of a tile.
//
// Bound: memory, 14 bytes an element in bf16 and 28 in fp32, to 128 taps; 260 mma a tile in bf16, 324 in fp16, 648 in fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/backward_plan.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium/tile.cuh>
#include <gdn_cuda/kernels/conv/toeplitz/tap_correlation.cuh>

namespace gdn_cuda::conv {

// Access: MediumRows or MediumColumns.
template <HyenaMediumBackwardConfig kConfig, class Access>
struct HyenaMediumBackwardWarp {
    static constexpr HyenaMediumConfig kForward = kConfig.forward();
    static constexpr bool kOwnSums = kForward.io == DType::f32;
    static constexpr int kAhead = (band_rows(kForward.taps) * kBandRow + kTileTokens - 1) / kTileTokens * kTileTokens;
    using T = Storage<kForward.io>;
    using Own = typename Access::Own;
    using Parts = typename Access::Parts;
    using Shared = HyenaMediumBackwardShared<kConfig>;

    const HyenaMediumBackwardArgs& args;
    Shared& shared;
    Access access;
    HyenaShare share;
    const HyenaArgs& forward = args.forward;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }
    __device__ __forceinline__ bool exists() const { return !kForward.columns || share.column < forward.channels; }
    __device__ __forceinline__ int taps() const { return forward.filter.taps; }
    __device__ __forceinline__ int rows() const { return band_rows(taps()); }
    __device__ __forceinline__ int reach() const { return rows() * kBandRow; }
    __device__ __forceinline__ auto u_ring() const { return band_ring(shared.u, access.flip()); }
    __device__ __forceinline__ auto dz_ring() const { return band_ring(shared.dz, access.flip()); }

    // ---- dz and u

    __device__ __forceinline__ void keep_dz(const Access& tiles, const Own& dy, const Own& x2, int tile) const {
        if (forward.mask.numbers.data == nullptr) {
            tiles.template keep<&Shared::dz>(tiles.product(dy, x2), tile);
            return;
        }
        float dz[kOwn];
        multiply(dz, dy, x2);
        tiles.multiply_by_mask(dz, forward.mask, tile);
        tiles.template keep<&Shared::dz>(tiles.parts_of(dz), tile);
    }
    // dz of the tokens behind the share, zeros behind the last one.
    __device__ __forceinline__ void load_behind(int begin) const {
        Access tiles = access;
        tiles.end = min(forward.tokens, share.end + reach());
#pragma unroll 1
        for (int tile = begin; tile < begin + reach(); tile += kTileTokens) {
            Own dy, x2;
            tiles.load(dy, args.of_y, tile);
            tiles.load(x2, forward.x2, tile);
            keep_dz(tiles, dy, x2, tile);
        }
    }
    // The tokens of a tile of u, of those that the share reaches.
    __device__ __forceinline__ void load_gated(Own& x1, Own& v, int tile) const {
        const int begin = max(share.first - reach(), 0);
        access.load_from(x1, forward.x1, tile, begin);
        access.load_from(v, forward.v, tile, begin);
    }
    // x1 and v are what load_gated gave.
    __device__ __forceinline__ void keep_u(const Own& x1, const Own& v, int tile) const {
        if (tile < 0) {
            keep_initial(tile);
        } else {
            access.template keep<&Shared::u>(access.product(x1, v), tile);
        }
    }
    // u of tokens before the sequence.
    __device__ __forceinline__ void keep_initial(int tile) const {
#pragma unroll 1
        for (int i = lane(); i < kTileTokens / 2; i += 32) {
            const auto number = [&](int token) {
                return exists() ? initial_at(forward.initial, share.batch, share.column, taps() - 1, -token) : 0.f;
            };
            store_pair(u_ring(), tile / 2 + i, number(tile + 2 * i), number(tile + 2 * i + 1));
        }
    }

    // ---- Gradients

    // The gradients of u that its last tokens have as a state, to sums in shared memory.
    __device__ __forceinline__ void add_of_last(int tile) const {
        const int length = taps() - 1, first = forward.tokens - length;
        if (tile + kTileTokens <= first || !exists()) return;
        const HyenaInitial& state = args.of_last;
        const float* const from =
            static_cast<const float*>(state.numbers.data) + share.batch * state.batch + share.column * state.channel;
        __syncwarp();
#pragma unroll 1
        for (int i = lane(); i < kTileTokens; i += 32) {
            const int position = tile + i - first;
            if (position >= 0 && position < length)
                shared.scratch[Shared::kSumsOfDu + place_of_sum(i, access.flip())] += from[position * state.position];
        }
    }
    // Sums to shared memory.
    __device__ __forceinline__ void sums_of_z(int tile, float rest) const {
        TileSums sums = {};
        add_band<false, kOwnSums>(sums, u_ring(), shared.taps, tile, rows(), rest);
        store_sums(shared.scratch + Shared::kSumsOfZ, sums, access.flip());
    }
    __device__ __forceinline__ void sums_of_du(int tile, float rest) const {
        TileSums sums = {};
        add_band<true, kOwnSums>(sums, dz_ring(), shared.taps, tile, rows(), rest);
        store_sums(shared.scratch + Shared::kSumsOfDu, sums, access.flip());
        add_of_last(tile);
    }
    __device__ __forceinline__ void store_product(const float (&x)[kOwn], const Own& y, const HyenaTensor& to, int tile) const {
        Own product;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) product.set(i, x[i] * y[i]);
        access.store(product, to, tile);
    }
    __device__ __forceinline__ void correlate(int tile) const {
        const auto add = [&](int lag) {
            add_correlation(shared.of_taps + lag, shared.scratch, u_ring(), dz_ring(), tile / kEight, lag,
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
    __device__ __forceinline__ void write_of_taps() const {
        if (!exists()) return;
        const i64 row = (static_cast<i64>(share.batch) * forward.segments + share.segment) * forward.channels + share.column;
        float* const to = args.of_taps + row * taps();
#pragma unroll 1
        for (int lag = lane(); lag < taps(); lag += 32) to[lag] = shared.of_taps[lag];
    }
    // du of the tokens before the sequence, by all threads.
    __device__ __forceinline__ void write_of_initial(float rest) const {
        const int length = taps() - 1;
#pragma unroll 1
        for (int tile = -kTileTokens; tile + kTileTokens > -length; tile -= kTileTokens) {
            __syncwarp();
#pragma unroll 1
            for (int i = lane(); i < kTileTokens / 2; i += 32) store_pair(dz_ring(), tile / 2 + i, 0.f, 0.f);
            __syncwarp();
            sums_of_du(tile, rest);
            __syncwarp();
            if (!exists()) continue;
            float* const to = args.of_initial + (static_cast<i64>(share.batch) * forward.channels + share.column) * length;
#pragma unroll 1
            for (int i = lane(); i < kTileTokens; i += 32) {
                const int position = tile + i + length;
                if (position >= 0) to[position] = shared.scratch[Shared::kSumsOfDu + place_of_sum(i, access.flip())];
            }
        }
    }

    __device__ __forceinline__ void run() const {
        const int tiles = (share.end - share.first + kTileTokens - 1) / kTileTokens;
        const int last = share.first + (tiles - 1) * kTileTokens;
        const float rest = fill_taps(shared.taps, forward.filter, share.column, rows(), exists());
        for (int lag = lane(); lag < kForward.taps; lag += 32) shared.of_taps[lag] = 0.f;
        load_behind(last + kTileTokens);
        Own x1, v, x2, dy;
        if (tiles > 0) {
#pragma unroll 1
            for (int tile = last; tile > last - kAhead; tile -= kTileTokens) {
                load_gated(x1, v, tile);
                keep_u(x1, v, tile);
            }
            access.load(dy, args.of_y, last);
            access.load(x2, forward.x2, last);
            load_gated(x1, v, last - kAhead);
        }
#pragma unroll 1
        for (int tile = last; tile >= share.first; tile -= kTileTokens) {
            keep_u(x1, v, tile - kAhead);
            keep_dz(access, dy, x2, tile);
            access.meet();
            access.load(x1, forward.x1, tile);
            access.load(v, forward.v, tile);
            correlate(tile);
            sums_of_z(tile, rest);
            sums_of_du(tile, rest);
            access.meet();

            // The next tile's loads stand behind the last use of this one's: both share scoreboards, and would be waited for.
            float numbers[kOwn];
            access.take(numbers, Shared::kSumsOfDu);
            store_product(numbers, v, args.of_x1, tile);
            store_product(numbers, x1, args.of_v, tile);
            if (tile > share.first) {
                load_gated(x1, v, tile - kTileTokens - kAhead);
                access.load(x2, forward.x2, tile - kTileTokens);
            }
            access.take(numbers, Shared::kSumsOfZ);
            access.multiply_by_mask(numbers, forward.mask, tile);
            store_product(numbers, dy, args.of_x2, tile);
            if (tile > share.first) access.load(dy, args.of_y, tile - kTileTokens);
        }
        access.meet();
        write_of_taps();
        if (share.first == 0 && args.of_initial != nullptr) write_of_initial(rest);
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
    const HyenaShare share = hyena_share<kConfig.columns, kWarps>(args.forward);
    if (!share.exists(args.forward)) return;
    if constexpr (kConfig.columns) {
        using Access = MediumColumns<T, kWarps, kParts, Shared>;
        const Access access(shared.warps, share, args.forward.channels);
        HyenaMediumBackwardWarp<kConfig, Access>{args, own, access, share}.run();
    } else {
        using Access = MediumRows<T, kParts, Shared>;
        const Access access(own, share, args.forward.vectors);
        HyenaMediumBackwardWarp<kConfig, Access>{args, own, access, share}.run();
    }
}

}  // namespace gdn_cuda::conv
