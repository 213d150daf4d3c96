// conv/hyena_medium_backward: gradients of conv/hyena_medium. With z = h * u + D u, so that y = x2 mask z:
//
//     dz = dy x2 mask,    du_t = sum_j h_j dz_{t+j} + D dz_t (+ the gradient of a state that u_t is in)
//     dx1 = du v,    dv = du x1,    dx2 = dy mask z,    dh_j = sum_t dz_t u_{t-j} (dh_0 of a channel is dD, too)
//
// A warp walks backwards over its tokens of one channel in tiles of 512. It computes dz and u and keeps both in shared memory
// in bf16 parts, dz beside that of the tokens behind the tile; u of the tokens before the tile is computed once more. Then du
// is products with transposed Toeplitz blocks, z with the blocks of the forward pass (toeplitz_product.cuh), and dh a
// correlation (tap_correlation.cuh), whose sums are kept in shared memory and written behind the last tile, for the host to add
// those of shares, sequences and a group's channels: the same bits in every run. Channels that are neighbours in memory are
// walked over by the warps of a block together (hyena_columns_tile.cuh).
//
// Shared memory, of each warp: u and dz of 1024 tokens (2048 from 129 taps on), tables of taps and sums of their gradients.
//
// Bound: memory, 14 bytes an element in bf16 and 28 in fp32, to 128 taps; 256 mma a tile in bf16, 336 in fp16, 672 in fp32.
#pragma once

#include <gdn_cuda/kernels/conv/hyena_columns_tile.cuh>
#include <gdn_cuda/kernels/conv/hyena_medium_backward_plan.cuh>
#include <gdn_cuda/kernels/conv/tap_correlation.cuh>

namespace gdn_cuda::conv {

// Access: HyenaTileRows or HyenaTileColumns.
template <HyenaMediumBackwardConfig kConfig, class Access>
struct HyenaMediumBackwardWarp {
    static constexpr HyenaMediumConfig kForward = kConfig.forward();
    static constexpr int kParts = kForward.parts(), kTapParts = kForward.tap_parts();
    using T = Storage<kForward.io>;
    using Own = typename Access::Own;
    using Parts = TileParts<kParts>;

    const HyenaMediumBackwardArgs& args;
    HyenaMediumBackwardShared<kConfig>& shared;
    Access of_dz, of_u;  // each through a tile of its own
    HyenaShare share;
    const HyenaArgs& forward = args.forward;

    __device__ __forceinline__ static int lane() { return lane_of_warp(); }
    // A lane's number i of its row.
    __device__ __forceinline__ static int token_of(int tile, int i) {
        return ToeplitzTile<T>::first(tile, i / kEight) + i % kEight;
    }
    __device__ __forceinline__ bool exists() const { return !kForward.columns || share.column < forward.channels; }
    __device__ __forceinline__ int taps() const { return forward.filter.taps; }
    __device__ __forceinline__ int blocks() const { return toeplitz_blocks(taps()); }
    __device__ __forceinline__ int reach() const { return (blocks() - 1) * kRowTokens; }

    __device__ __forceinline__ void fill_tables() {
        const HyenaFilter& filter = forward.filter;
        const i64 group = share.column / filter.channels_a_group * filter.group;
        fill_pairs(shared.taps, lane(), blocks(), [&](int x) {
            return x >= 0 && x < filter.taps && exists() ? load_number(filter.weight, group + x * filter.tap) : 0.f;
        });
        for (auto& sums : shared.of_taps.of_lanes) reinterpret_cast<float4&>(sums[lane()]) = {};
        __syncwarp();
    }
    // Tensor cores truncate their sums: in fp32 each block has its own, as in hyena_medium.
    __device__ __forceinline__ static void add_block(TileSums& sums, const Parts& tile, const BlockTaps<kTapParts>& taps) {
        if constexpr (kForward.io == DType::f32) {
            TileSums of_block = {};
            add_product(of_block, tile, taps);
#pragma unroll
            for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] += of_block[i / 4][i % 4];
        } else {
            add_product(sums, tile, taps);
        }
    }

    // Adds number(token) to a lane's numbers of its row. Not unrolled: few calls have states, and registers are short.
    __device__ __forceinline__ static void add_rarely(float (&x)[kOwn], int tile, auto&& number) {
#pragma unroll 1
        for (int i = 0; i < kOwn; ++i) {
            const float added = number(token_of(tile, i));
#pragma unroll
            for (int j = 0; j < kOwn; ++j)
                if (j == i) x[j] += added;
        }
    }

    // ---- dz and u

    __device__ __forceinline__ void dz_of(float (&dz)[kOwn], const Access& access, const Own& dy, const Own& x2,
                                          int tile) const {
        multiply(dz, dy, x2);
        access.multiply_by_mask(dz, forward.mask, tile);
        access.to_row(dz);
    }
    // dz of the tokens behind the share, zeros behind the last one.
    __device__ __forceinline__ void load_behind(int begin) {
        Access access = of_dz;
        access.end = min(forward.tokens, share.end + reach());
#pragma unroll 1
        for (int tile = begin; tile < begin + reach(); tile += kTileTokens) {
            Own dy, x2;
            access.load(dy, args.of_y, tile);
            access.load(x2, forward.x2, tile);
            float dz[kOwn];
            dz_of(dz, access, dy, x2, tile);
            store_tile(shared.dz, parts_of_row<kParts>(dz), tile / kEight, lane());
            access.between_rows();
        }
    }
    // Of the tokens that the tile reaches before itself, the last 512.
    __device__ __forceinline__ void load_before(Own& x1, Own& v, int tile, int before) const {
        const int begin = max(tile - reach(), 0);
        of_u.load_from(x1, forward.x1, before, begin);
        of_u.load_from(v, forward.v, before, begin);
    }
    // Keeps u of the tokens before the tile; x1 and v are what load_before gave.
    __device__ __forceinline__ void keep_before(Own& x1, Own& v, int tile) {
        const int begin = tile - reach();
#pragma unroll 1
        for (int before = tile - kTileTokens; before + kTileTokens > begin; before -= kTileTokens) {
            if (before < tile - kTileTokens) {
                of_u.between_rows();
                load_before(x1, v, tile, before);
            }
            float u[kOwn];
            multiply(u, x1, v);
            of_u.to_row(u);
            if (before < 0 && forward.initial.numbers.data != nullptr && exists())
                add_rarely(u, before, [&](int token) {
                    return initial_at(forward.initial, share.batch, share.column, taps() - 1, -token);
                });
            const Parts parts = parts_of_row<kParts>(u);
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (token_of(before, half * kEight) >= begin) store_half(shared.u, parts, before / kEight, half, lane());
        }
    }

    // ---- Gradients

    // Row numbers: du of a tile, whose dz is in shared memory.
    __device__ __forceinline__ void add_blocks_behind(TileSums& sums, int tile) {
#pragma unroll 1
        for (int block = 1; block < blocks(); ++block)
            add_block(sums, load_tile(shared.dz, (tile + block * kRowTokens) / kEight, lane()),
                      load_transposed_pairs(shared.taps, lane(), block));
    }
    __device__ __forceinline__ void add_of_last(float (&du)[kOwn], int tile) const {
        const int first = forward.tokens - (taps() - 1);
        if (tile + kTileTokens <= first || !exists()) return;
        const HyenaInitial& state = args.of_last;
        const float* const from =
            static_cast<const float*>(state.numbers.data) + share.batch * state.batch + share.column * state.channel;
        add_rarely(du, tile, [&](int token) {
            const int position = token - first;
            return position >= 0 && position < taps() - 1 ? from[position * state.position] : 0.f;
        });
    }
    __device__ __forceinline__ void sums_of_z(float (&z)[kOwn], int tile, float bias) {
        TileSums sums;
        const Parts own = load_tile(shared.u, tile / kEight, lane());
#pragma unroll
        for (int i = 0; i < kOwn; ++i) z[i] = own.number(i / kEight, i % kEight);
        begin_sums(sums, z, bias);
        add_block(sums, own, load_pairs(shared.taps, lane(), 0));
#pragma unroll 1
        for (int block = 1; block < blocks(); ++block)
            add_block(sums, load_tile(shared.u, (tile - block * kRowTokens) / kEight, lane()),
                      load_pairs(shared.taps, lane(), block));
        take_sums(z, sums);
    }
    __device__ __forceinline__ void store_product(const float (&x)[kOwn], const Own& y, const HyenaTensor& to, int tile) const {
        Own product;
#pragma unroll
        for (int i = 0; i < kOwn; ++i) product.set(i, x[i] * y[i]);
        of_u.store(product, to, tile);
    }
    __device__ __forceinline__ void correlate(int tile) {
#pragma unroll 1
        for (int lag = 0; lag < taps(); lag += kCorrelatedTaps) {
            float4& kept = reinterpret_cast<float4&>(shared.of_taps.of_lanes[lag / kCorrelatedTaps][lane()]);
            float4 sums = kept;
            add_correlation<kParts>(sums, shared.u, shared.dz, tile / kEight, lag);
            kept = sums;
        }
    }
    // Tiles x have the products of dz_s with u before the sequence where s >= q (tap_correlation.cuh); these are the others.
    __device__ __forceinline__ float with_initial(int lag) const {
        float sum = 0.f;
#pragma unroll 1
        for (int token = 0; token < min(lag % 8, forward.tokens); ++token) {
            float dz = 0.f;
#pragma unroll
            for (int part = kParts - 1; part >= 0; --part) {
                const float2 pair = unpack<DType::bf16>(shared.dz.pieces[part][0][token / 2]);
                dz += token % 2 == 0 ? pair.x : pair.y;
            }
            sum += dz * initial_at(forward.initial, share.batch, share.column, taps() - 1, lag - token);
        }
        return sum;
    }
    __device__ __forceinline__ void write_of_taps() {
        if (!exists()) return;
        const bool with = share.first == 0 && forward.initial.numbers.data != nullptr;
        const i64 row = (static_cast<i64>(share.batch) * forward.segments + share.segment) * forward.channels + share.column;
        float* const to = args.of_taps + row * taps();
#pragma unroll 1
        for (int first = 0; first < taps(); first += kCorrelatedTaps)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int lag = first + lag_of(i);
                if (lag >= taps()) continue;
                const float sum = shared.of_taps.of_lanes[first / kCorrelatedTaps][lane()][i];
                to[lag] = with ? sum + with_initial(lag) : sum;
            }
    }
    // du of the tokens before the sequence.
    __device__ __forceinline__ void write_of_initial() {
        const int length = taps() - 1;
#pragma unroll 1
        for (int tile = -kTileTokens; tile + kTileTokens > -length; tile -= kTileTokens) {
            const float nothing[kOwn] = {};
            store_tile(shared.dz, parts_of_row<kParts>(nothing), tile / kEight, lane());
            __syncwarp();
            TileSums sums = {};
            add_blocks_behind(sums, tile);
            float du[kOwn];
            take_sums(du, sums);
            add_of_last(du, tile);
            if (exists()) {
                float* const to = args.of_initial + (static_cast<i64>(share.batch) * forward.channels + share.column) * length;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) {
                    const int position = token_of(tile, i) + length;
                    if (position >= 0) to[position] = du[i];
                }
            }
            __syncwarp();
        }
    }

    __device__ __forceinline__ void run() {
        const float bias = exists() ? bias_of(forward.filter, share.column) : 0.f;
        const int tiles = (share.end - share.first + kTileTokens - 1) / kTileTokens;
        const int last = share.first + (tiles - 1) * kTileTokens;
        fill_tables();
        load_behind(last + kTileTokens);
        Own x1, v, x2, dy;
        const auto load_gated = [&](int tile) {
            of_u.load(x1, forward.x1, tile);
            of_u.load(v, forward.v, tile);
        };
        if (tiles > 0) {
            of_u.load(dy, args.of_y, last);
            of_u.load(x2, forward.x2, last);
            load_gated(last);
        }
#pragma unroll 1
        for (int tile = last; tile >= share.first; tile -= kTileTokens) {
            const bool is_first = tile == share.first;
            float numbers[kOwn];
            TileSums sums;
            dz_of(numbers, of_dz, dy, x2, tile);
            begin_sums(sums, numbers, bias);
            const Parts own = parts_of_row<kParts>(numbers);
            __syncwarp();  // the pieces that are overwritten have been read
            store_tile(shared.dz, own, tile / kEight, lane());
            multiply(numbers, x1, v);
            of_u.to_row(numbers);
            store_tile(shared.u, parts_of_row<kParts>(numbers), tile / kEight, lane());
            __syncwarp();

            add_block(sums, own, load_transposed_pairs(shared.taps, lane(), 0));
            add_blocks_behind(sums, tile);
            take_sums(numbers, sums);
            Own x1_before, v_before;
            load_before(x1_before, v_before, tile, tile - kTileTokens);
            add_of_last(numbers, tile);
            of_dz.to_own(numbers);
            store_product(numbers, v, args.of_x1, tile);
            store_product(numbers, x1, args.of_v, tile);

            keep_before(x1_before, v_before, tile);
            if (!is_first) of_u.load(x2, forward.x2, tile - kTileTokens);
            if (!is_first) load_gated(tile - kTileTokens);
            __syncwarp();
            sums_of_z(numbers, tile, bias);
            of_u.to_own(numbers);
            of_u.multiply_by_mask(numbers, forward.mask, tile);
            store_product(numbers, dy, args.of_x2, tile);

            if (!is_first) of_u.load(dy, args.of_y, tile - kTileTokens);
            correlate(tile);
        }
        __syncwarp();
        write_of_taps();
        if (share.first == 0 && args.of_initial != nullptr) write_of_initial();
    }
};

template <HyenaMediumBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), blocks_without_spills(kConfig.blocks_of_sm()))
    hyena_medium_backward(const __grid_constant__ HyenaMediumBackwardArgs args) {
    using T = Storage<kConfig.io>;
    constexpr int kWarps = kConfig.warps();
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaMediumBackwardSharedPlan<kConfig>*>(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HyenaShare share = hyena_share<kConfig.columns, kWarps>(args.forward);
    if (!share.exists(args.forward)) return;
    if constexpr (kConfig.columns) {
        using Access = HyenaTileColumns<T, kWarps>;
        const Access of_dz{shared.tiles[0], share.batch, share.column - warp, args.forward.channels, share.end};
        const Access of_u{shared.tiles[1], share.batch, share.column - warp, args.forward.channels, share.end};
        HyenaMediumBackwardWarp<kConfig, Access>{args, shared.warps[warp], of_dz, of_u, share}.run();
    } else {
        using Access = HyenaTileRows<T>;
        const Access access{shared.warps[warp].stage, share.batch, share.column, share.end, args.forward.vectors};
        HyenaMediumBackwardWarp<kConfig, Access>{args, shared.warps[warp], access, access, share}.run();
    }
}

}  // namespace gdn_cuda::conv
