// conv/hyena_medium: y_t = x2_t mask_t (sum_j h_j u_{t-j} + D u_t), u = x1 * v, up to 1024 taps, on tensor cores.
//
// A warp walks over its tokens of one channel in tiles of 512 (toeplitz_product.cuh). It computes u, keeps it in shared memory
// in bf16 parts beside that of the tokens before, and multiplies the tile and the tiles 32, 64, … tokens before it by
// Toeplitz blocks: 5 for 128 taps. Loads of the next tile are in flight meanwhile. Where channels are neighbours in memory, the
// warps of a block have neighbouring channels and walk together (hyena_columns_tile.cuh).
//
// Shared memory, of each warp: the tables of taps, and u of the last 1024 tokens (2048 from 129 taps on); 2 KB for its tile.
//
// Bound: memory, 8 bytes an output in bf16 and 16 in fp32, up to some 200 taps; beyond, the tensor cores: a block takes 16 mma
// for 512 outputs in bf16, 24 in fp16 and 48 in fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_columns_tile.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium_plan.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_product.cuh>

namespace gdn_cuda::conv {

// Access: HyenaTileRows or HyenaTileColumns.
template <HyenaMediumConfig kConfig, class Access>
struct HyenaMediumWarp {
    using T = Storage<kConfig.io>;
    using Parts = TileParts<kConfig.parts()>;

    const HyenaArgs& args;
    HyenaMediumShared<kConfig>& shared;
    Access access;
    int batch, channel;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }

    __device__ __forceinline__ bool exists() const { return !kConfig.columns || channel < args.channels; }
    __device__ __forceinline__ int blocks() const { return toeplitz_blocks(args.filter.taps); }
    // u of the rows before the first tile, a lane two tokens at a time.
    __device__ __forceinline__ void load_before(int begin) {
        const int pairs = (blocks() - 1) * kRowTokens / 2;
#pragma unroll 1
        for (int i = lane(); i < pairs; i += 32) {
            float u[2];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int before = 2 * (pairs - i) - j;
                const bool is_met = before < args.filter.taps && exists();
                u[j] = is_met ? u_at<T>(args, batch, channel, begin - before) : 0.f;
            }
            store_pair(shared.ring, begin / 2 - pairs + i, u[0], u[1]);
        }
    }
    __device__ __forceinline__ void fill_taps() {
        const HyenaFilter& filter = args.filter;
        const i64 group = channel / filter.channels_a_group * filter.group;
        fill_pairs(shared.taps, lane(), blocks(), [&](int x) {
            return x >= 0 && x < filter.taps && exists() ? load_number(filter.weight, group + x * filter.tap) : 0.f;
        });
    }
    // Tensor cores truncate their sums, which in fp32 shows after the many products of a long filter: there each block has sums
    // of its own, which are added with rounding to nearest.
    __device__ __forceinline__ void add_block(TileSums& sums, const Parts& tile, int block) const {
        const BlockTaps<kConfig.tap_parts()> taps = load_pairs(shared.taps, lane(), block);
        if constexpr (kConfig.io == DType::f32) {
            TileSums of_block = {};
            add_product(of_block, tile, taps);
#pragma unroll
            for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += of_block[i / 4][i % 4];
        } else {
            add_product(sums, tile, taps);
        }
    }
    __device__ __forceinline__ void run(int begin, int end) {
        const float bias = exists() ? bias_of(args.filter, channel) : 0.f;
        fill_taps();
        load_before(begin);
        typename Access::Own x1, v, x2;
        access.load(x1, args.x1, begin);
        access.load(v, args.v, begin);
#pragma unroll 1
        for (int tile = begin; tile < end; tile += kTileTokens) {
            TileSums sums;
            Parts own;
            {
                float u[kOwn];
                multiply(u, x1, v);
                access.to_row(u);
                begin_sums(sums, u, bias);
                own = parts_of_row<kConfig.parts()>(u);
            }
            if (tile + kTileTokens < end) {
                access.load(x1, args.x1, tile + kTileTokens);
                access.load(v, args.v, tile + kTileTokens);
            }
            __syncwarp();  // the pieces that are overwritten have been read
            store_tile(shared.ring, own, tile / kEight, lane());
            __syncwarp();
            add_block(sums, own, 0);
            access.load(x2, args.x2, tile);
#pragma unroll 1
            for (int block = 1; block < blocks(); ++block)
                add_block(sums, load_tile(shared.ring, (tile - block * kRowTokens) / kEight, lane()), block);
            float z[kOwn];
            take_sums(z, sums);
            access.to_own(z);
            access.multiply_by_mask(z, args.mask, tile);
            typename Access::Own y;
#pragma unroll
            for (int i = 0; i < kOwn; ++i) y.set(i, x2[i] * z[i]);
            access.store(y, args.y, tile);
        }
    }
};

template <HyenaMediumConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), blocks_without_spills(kConfig.blocks_of_sm()))
    hyena_medium(const __grid_constant__ HyenaArgs args) {
    using T = Storage<kConfig.io>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaMediumSharedPlan<kConfig>*>(memory);
    constexpr int kWarps = kConfig.warps();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HyenaShare share = hyena_share<kConfig.columns, kWarps>(args);
    if (!share.exists(args)) return;
    if constexpr (kConfig.columns) {
        using Access = HyenaTileColumns<T, kWarps>;
        const Access access{shared, share.batch, share.column - warp, args.channels, share.end};
        HyenaMediumWarp<kConfig, Access>{args, shared.warps[warp], access, share.batch, share.column}.run(share.first,
                                                                                                          share.end);
        if (share.column >= args.channels) return;
    } else {
        using Access = HyenaTileRows<T>;
        const Access access{shared.warps[warp].stage, share.batch, share.column, share.end, args.vectors};
        HyenaMediumWarp<kConfig, Access>{args, shared.warps[warp], access, share.batch, share.column}.run(share.first,
                                                                                                          share.end);
    }
    if (share.is_last(args)) write_last_inputs<T>(args, share.batch, share.column, lane_of_warp(), 32);
}

}  // namespace gdn_cuda::conv
