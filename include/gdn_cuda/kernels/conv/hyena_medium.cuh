// conv/hyena_medium: y_t = x2_t mask_t (sum_j h_j u_{t-j} + D u_t), u = x1 * v, up to 1024 taps, on tensor cores.
//
// A warp walks over its tokens of one channel in tiles of 512 (toeplitz_product.cuh). It computes u, keeps it in shared memory
// in bf16 parts beside that of the tokens before, and multiplies the tile and the tiles 32, 64, … tokens before it by
// Toeplitz blocks: 5 for 128 taps. Loads of the next tile are in flight meanwhile.
//
// Shared memory, of each warp: the tables of taps, and u of the last 1024 tokens (2048 from 129 taps on).
//
// Bound: memory, 8 bytes an output in bf16 and 16 in fp32, up to some 200 taps; beyond, the tensor cores: a block takes 16 mma
// for 512 outputs in bf16, 24 in fp16 and 48 in fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_common.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium_plan.cuh>
#include <gdn_cuda/kernels/conv/hyena_tile.cuh>
#include <gdn_cuda/kernels/conv/toeplitz_product.cuh>

namespace gdn_cuda::conv {

template <HyenaMediumConfig kConfig>
struct HyenaMediumWarp {
    using T = Storage<kConfig.io>;

    const HyenaArgs& args;
    HyenaMediumShared<kConfig>& shared;
    int batch, channel;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }

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
                u[j] = before < args.filter.taps ? u_at<T>(args, batch, channel, begin - before) : 0.f;
            }
            store_pair(shared.ring, begin / 2 - pairs + i, u[0], u[1]);
        }
    }
    __device__ __forceinline__ void fill_taps() {
        const HyenaFilter& filter = args.filter;
        const i64 group = channel / filter.channels_a_group * filter.group;
        fill_pairs(shared.taps, lane(), blocks(),
                   [&](int x) { return x >= 0 && x < filter.taps ? load_number(filter.weight, group + x * filter.tap) : 0.f; });
    }
    // Tensor cores truncate their sums, which in fp32 shows after the many products of a long filter: there each block has sums
    // of its own, which are added with rounding to nearest.
    __device__ __forceinline__ void add_block(TileSums& sums, const TileParts<kConfig.parts()>& tile, int block) const {
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
        const float bias = bias_of(args.filter, channel);
        fill_taps();
        load_before(begin);
        ToeplitzTile<T> x1, v, x2;
        const auto load = [&](ToeplitzTile<T>& to, const HyenaTensor& from, int tile) {
            to.load(HyenaRow<T>(from, batch, channel), tile, end, args.vectors, shared.stage);
        };
        load(x1, args.x1, begin);
        load(v, args.v, begin);
#pragma unroll 1
        for (int tile = begin; tile < end; tile += kTileTokens) {
            TileSums sums;
            TileParts<kConfig.parts()> own;
            {
                float u[2][kEight];
                multiply(u, x1, v);
                begin_sums(sums, u, bias);
                own = TileParts<kConfig.parts()>::of(u);
            }
            load(x2, args.x2, tile);
            if (tile + kTileTokens < end) {
                load(x1, args.x1, tile + kTileTokens);
                load(v, args.v, tile + kTileTokens);
            }
            __syncwarp();  // the pieces that are overwritten have been read
            store_tile(shared.ring, own, tile / kEight, lane());
            __syncwarp();
            add_block(sums, own, 0);
#pragma unroll 1
            for (int block = 1; block < blocks(); ++block)
                add_block(sums, load_tile(shared.ring, (tile - block * kRowTokens) / kEight, lane()), block);
            if (args.mask.numbers.data != nullptr) multiply_by_mask(sums, shared.stage, args.mask, batch, tile, end);
            gated(x2, sums).store(HyenaRow<T>(args.y, batch, channel), tile, end, args.vectors, shared.stage);
        }
    }
};

template <HyenaMediumConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), blocks_without_spills(kConfig.io == DType::f32 ? 3 : 5))
    hyena_medium(const __grid_constant__ HyenaArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const HyenaShare share = HyenaShare::of(args, static_cast<i64>(blockIdx.x) * kConfig.warps() + warp, args.channels);
    if (!share.exists(args)) return;
    auto& shared = reinterpret_cast<HyenaMediumSharedPlan<kConfig>*>(memory)->warps[warp];
    HyenaMediumWarp<kConfig>{args, shared, share.batch, share.column}.run(share.first, share.end);
    if (share.is_last(args)) write_last_inputs<Storage<kConfig.io>>(args, share.batch, share.column, lane, 32);
}

}  // namespace gdn_cuda::conv
