// conv/hyena_medium: y_t = x2_t mask_t (sum_j h_j u_{t-j} + D u_t), u = x1 * v, up to 1024 taps, on tensor cores.
//
// A warp iterates over its tokens of one channel in tiles of 512. It writes u of the tile to shared memory in bf16 parts,
// next to u of the preceding tokens, and multiplies it by the Toeplitz matrix of the taps, with D added to h_0
// (toeplitz/band.cuh). The next tile's loads are in flight meanwhile. If channels are contiguous in memory, the warps of a
// block have adjacent channels and the same tokens (hyena_medium/tile.cuh), and cp.async copies the next two tiles.
//
// Shared memory, per warp: a table of taps, u of the last 1024 tokens (2048 from 129 taps on), and sums of a tile; for
// contiguous channels 6 KB in bf16 for two tiles of x1, v and x2.
//
// Bound: memory up to some 200 taps, 8 bytes an output in bf16 and 16 in fp32: 85 and 73 % of an H200's memory bandwidth for
// 128 taps of 4096 x 65536 values, 52 % in bf16 if channels are contiguous: rows of 32 bytes occupy load-store units. With more
// taps the tensor cores: 16 taps take 8 mma for 512 outputs in bf16, 12 in fp16 and 24 in fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_medium/plan.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium/tile.cuh>

namespace gdn_cuda::conv {

// Access: MediumRows or MediumColumns.
template <HyenaMediumConfig kConfig, class Access>
struct HyenaMediumWarp {
    using T = Storage<kConfig.io>;
    using Own = typename Access::Own;
    using Shared = HyenaMediumShared<kConfig>;
    static constexpr bool kSeparateSums = kConfig.io == DType::f32;

    const HyenaArgs& args;
    Shared& shared;
    Access access;
    int batch, channel;

    __device__ __forceinline__ bool exists() const { return !kConfig.columns || channel < args.channels; }
    __device__ __forceinline__ int rows() const { return band_rows(args.filter.taps); }
    __device__ __forceinline__ auto ring() const { return band_ring(shared.u, access.flip()); }
    // u of the rows before the first tile, two tokens per lane at a time.
    __device__ __forceinline__ void load_before(int begin) {
        const int pairs = rows() * kBandRow / 2;
#pragma unroll 1
        for (int i = lane_of_warp(); i < pairs; i += 32) {
            float u[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int before = 2 * (pairs - i) - j;
                const bool is_seen = before < args.filter.taps && exists();
                u[j] = is_seen ? u_at<T>(args, batch, channel, begin - before) : 0.f;
            }
            store_pair(ring(), begin / 2 - pairs + i, u[0], u[1]);
        }
    }
    __device__ __forceinline__ void run(int begin, int end) {
        const float residual = fill_taps(shared.taps, args.filter, channel, rows(), exists());
        load_before(begin);
        if constexpr (kConfig.stages() > 0)
            run_tiles_ahead(begin, end, residual);
        else
            run_tiles(begin, end, residual);
    }
    // Multiplies u in shared memory by the taps, and x2 by the sums.
    __device__ __forceinline__ void products(float (&z)[kOwn], const auto& taps, int tile, float residual) {
        TileSums sums = {};
        add_band<false, kSeparateSums>(sums, ring(), taps, tile, rows(), residual);
        __syncwarp();
        store_sums(shared.scratch, sums, access.flip());
        access.sync();
        access.load_sums(z);
        access.multiply_by_mask(z, args.mask, tile);
    }
    __device__ __forceinline__ void store_product(const Own& x2, const float (&z)[kOwn], int tile) const {
        Own y;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) y.set(i, x2[i] * z[i]);
        access.store(y, args.y, tile);
    }
    __device__ __forceinline__ void run_tiles(int begin, int end, float residual) {
        Own x1, v, x2;
        access.load(x1, args.x1, begin);
        access.load(v, args.v, begin);
#pragma unroll 1
        for (int tile = begin; tile < end; tile += kTileTokens) {
            access.template store_parts<&Shared::u>(access.product(x1, v), tile);
            access.sync();
            access.load(x2, args.x2, tile);
            if (tile + kTileTokens < end) {
                access.load(x1, args.x1, tile + kTileTokens);
                access.load(v, args.v, tile + kTileTokens);
            }
            float z[kOwn];
            products(z, shared.taps, tile, residual);
            store_product(x2, z, tile);
        }
    }
    // With loads of the next two tiles in flight. Warps that wait for each other twice a tile would all wait for memory
    // otherwise.
    __device__ __forceinline__ void run_tiles_ahead(int begin, int end, float residual) {
        if constexpr (kConfig.taps_in_registers()) {
            __syncwarp();
            run_tiles_ahead(begin, end, residual, BandTaps<band_rows(kConfig.taps), kConfig.tap_parts()>(shared.taps, rows()));
        } else {
            run_tiles_ahead(begin, end, residual, shared.taps);
        }
    }
    __device__ __forceinline__ void run_tiles_ahead(int begin, int end, float residual, const auto& taps) {
        const auto fetch_factors = [&](auto* slots, int tile) {
            if (tile >= end) return;
            access.fetch(slots[0], args.x1, tile);
            access.fetch(slots[1], args.v, tile);
        };
        const auto fetch_gate = [&](auto* slots, int tile) {
            if (tile < end) access.fetch(slots[2], args.x2, tile);
            cp_async_fence();
        };
        auto *slots = shared.next.slots, *later = slots + 3;
        fetch_factors(slots, begin);
        fetch_gate(slots, begin);
        fetch_factors(later, begin + kTileTokens);
        fetch_gate(later, begin + kTileTokens);
#pragma unroll 1
        for (int tile = begin; tile < end; tile += kTileTokens) {
            cp_async_wait<1>();
            access.template store_parts<&Shared::u>(access.product(access.read(slots[0]), access.read(slots[1])), tile);
            access.sync();
            fetch_factors(slots, tile + 2 * kTileTokens);
            float z[kOwn];
            products(z, taps, tile, residual);
            store_product(access.read(slots[2]), z, tile);
            fetch_gate(slots, tile + 2 * kTileTokens);
            auto* const free = slots;
            slots = later;
            later = free;
        }
    }
};

template <HyenaMediumConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), blocks_without_spills(kConfig.blocks_of_sm()))
    hyena_medium(const __grid_constant__ HyenaArgs args) {
    using T = Storage<kConfig.io>;
    using Shared = HyenaMediumShared<kConfig>;
    constexpr int kWarps = kConfig.warps(), kParts = kConfig.parts();
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaMediumSharedPlan<kConfig>*>(memory);
    Shared& own = shared.warps[threadIdx.x / 32];
    const HyenaSegment segment = hyena_segment<kConfig.columns, kWarps>(args);
    if (!segment.exists(args)) return;
    if constexpr (kConfig.columns) {
        using Access = MediumColumns<T, kWarps, kParts, Shared>;
        const Access access(shared.warps, segment, args.channels);
        HyenaMediumWarp<kConfig, Access>{args, own, access, segment.batch, segment.column}.run(segment.first, segment.end);
        if (segment.column >= args.channels) return;
    } else {
        using Access = MediumRows<T, kParts, Shared>;
        const Access access(own, segment, args.vectors);
        HyenaMediumWarp<kConfig, Access>{args, own, access, segment.batch, segment.column}.run(segment.first, segment.end);
    }
    if (segment.is_last(args)) write_last_inputs<T>(args, segment.batch, segment.column, lane_of_warp(), 32);
}

}  // namespace gdn_cuda::conv
