// conv/hyena_long: y_t = x2_t (sum_j h_j u_{t-j} + D u_t) with u = x1 * v and h_t = sum_s R_s p_s^t, on tensor cores.
//
// A warp walks over its tokens of one channel in tiles of 512, 16 rows of 32 (toeplitz/product.cuh). Within a row, h is a
// Toeplitz block; from row to row, the states x_s = sum_j p_s^j u_{t-j} carry everything before, 16 at a time:
//     states that each row adds      (16 rows x 32 tokens) (32 tokens x 16 states)
//     states before each row         a scan over the 16 rows by shuffles, behind the state that the warp carries
//     what they add to the row       (16 rows x 16 states) (16 states x 32 tokens)
// All operands of these products are in registers as memory and accumulators give them; every number is a sum of two
// bf16, three for fp32 tensors. Where there are few channels, warps share the tokens of one: a first launch (only_states)
// computes what each share adds to the states behind it, and a warp of the second begins by carrying these through the shares
// before its own.
//
// Where channels are neighbours in memory, the warps of a block have neighbouring channels and walk together
// (hyena/tile_layouts.cuh); cp.async copies the next tile to shared memory (hyena/tile_prefetch.cuh), so that 16 warps of 128
// registers take the channels of whole sectors.
//
// Shared memory, of each warp: right operands made of the poles, 5 KB for 16 states, and 2 KB for a tile that is not of whole
// vectors of tokens, or 3 KB for the next tile of neighbouring channels in bf16 and 2 KB for their transposition.
//
// Bound: memory, 8 bytes an output in bf16 and 16 in fp32: 76 and 88 % of an H200's speed for 16 states of 4096 x 65536
// numbers, in bf16 54 % where channels are neighbours; 48 mma for 512 outputs of 16 states take some 40 % of bf16's time.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile_prefetch.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/state_products.cuh>

namespace gdn_cuda::conv {

// Access: HyenaTileRows or HyenaTileColumns.
template <HyenaLongConfig kConfig, class Access>
struct HyenaLongWarp {
    using T = Storage<kConfig.io>;
    static constexpr int kParts = kConfig.parts();
    using Parts = TileParts<kParts>;
    using Poles = HyenaPoleGroup<kParts>;

    const HyenaLongArgs& args;
    HyenaLongShared<kConfig>& shared;
    Access access;
    HyenaShare share;
    bool exists;  // false for a warp that has no channel: it computes with parameters of another one, and writes nothing
    LaneStates carried[kConfig.groups];  // the states before the tile, the same in all lanes of a t

    __device__ __forceinline__ static int g() { return lane_of_warp() / 4; }
    __device__ __forceinline__ static int t() { return lane_of_warp() % 4; }
    __device__ __forceinline__ static int state_of(int eight, int i) { return 8 * eight + 2 * t() + i; }
    __device__ __forceinline__ i64 row() const { return static_cast<i64>(share.batch) * args.channels + share.column; }

    // The states before the first tile.
    __device__ __forceinline__ void begin() {
        const HyenaPoles poles(args, share.column);
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group)
#pragma unroll
            for (int eight = 0; eight < 2; ++eight)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    carried[group][eight][i] = first_state(poles, group * kHyenaGroup + state_of(eight, i));
    }
    __device__ __forceinline__ float first_state(const HyenaPoles& poles, int state) const {
        if (kConfig.only_states || state >= args.states) return 0.f;
        float x = initial_at(args.initial, share.batch, share.column, args.states, args.states - state);
        const LongFactor kept(poles.log_pole(state), args.segment_tokens);
        const float* added = args.added + row() * (args.segments - 1) * args.states + state;
#pragma unroll 1
        for (int segment = 0; segment < share.segment; ++segment, added += args.states) x = kept.times_plus(x, *added);
        return x;
    }
    // One group over one tile: adds to `sums` what its states add, and carries them on.
    __device__ __forceinline__ void advance(int group, const Parts& u, TileSums& sums, int tile) {
        const Poles& poles = shared.groups[group];
        RowStates before;  // before rows g and g + 8
        float by_rows[2][4] = {};
#pragma unroll
        for (int eight = 0; eight < 2; ++eight) {
            uint4 right[kParts];
#pragma unroll
            for (int part = 0; part < kParts; ++part) right[part] = words_of(poles.to_states[part][eight]);
            for_products<kParts, kParts>([&](int left, int part) {
                unsigned a[4];
                u.left(a, left, 0);
                mma_m16n8k16<DType::bf16>(by_rows[eight], a, right[part].x, right[part].y);
                u.left(a, left, 1);
                mma_m16n8k16<DType::bf16>(by_rows[eight], a, right[part].z, right[part].w);
            });
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int state = state_of(eight, i);
                float first = by_rows[eight][i], second = by_rows[eight][2 + i];
#pragma unroll
                for (int step = 0; step < 3; ++step) {
                    const float other_first = __shfl_up_sync(0xffffffffu, first, 4 << step);
                    const float other_second = __shfl_up_sync(0xffffffffu, second, 4 << step);
                    if (g() >= 1 << step) {
                        first = fmaf(poles.doubled[step][state], other_first, first);
                        second = fmaf(poles.doubled[step][state], other_second, second);
                    }
                }
                const float added_first = __shfl_sync(0xffffffffu, first, 28 + t());
                const float added_second = __shfl_sync(0xffffffffu, second, 28 + t());
                const float kept = poles.half[state], x = carried[group][eight][i];
                if constexpr (!kConfig.only_states) {
                    const float row = poles.rows[g()][state];
                    const float up_first = __shfl_up_sync(0xffffffffu, first, 4);
                    const float up_second = __shfl_up_sync(0xffffffffu, second, 4);
                    before[0][eight][i] = fmaf(row, x, g() > 0 ? up_first : 0.f);
                    before[1][eight][i] = fmaf(row, fmaf(kept, x, added_first), g() > 0 ? up_second : 0.f);
                }
                carried[group][eight][i] =
                    LongFactor(poles.tile[0][state], poles.tile[1][state]).times_plus(x, fmaf(kept, added_first, added_second));
            }
        }
        if constexpr (!kConfig.only_states) {
            add_states<false>(sums, before, poles.to_outputs);
            if (tile + kTileTokens > args.tokens) {
                write_within(group, before, tile);
                __syncwarp();  // mma.sync takes all lanes
            }
        }
    }
    __device__ __forceinline__ static uint4 words_of(const unsigned (&of_lanes)[32][4]) {
        return *reinterpret_cast<const uint4*>(of_lanes[lane_of_warp()]);
    }
    // The states behind the last token, which is within this tile: those before its row, and the row's tokens one by one.
    __device__ __forceinline__ void write_within(int group, const RowStates& before, int tile) const {
        const int left = args.tokens - tile, row_of_end = left / kRowTokens;
        if (g() != row_of_end % 8 || !exists) return;
        int column = share.column;
        if constexpr (kConfig.columns)  // opaque: addresses are not to be computed before the loop over tiles, and kept
            asm volatile("" : "+r"(column));
        const HyenaPoles poles(args, column);
        const HyenaRow<T> x1(args.x1, share.batch, column), v(args.v, share.batch, column);
        float* const to = args.last + (static_cast<i64>(share.batch) * args.channels + column) * args.states;
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int state = group * kHyenaGroup + state_of(eight, i);
                if (state >= args.states) continue;
                float x = row_of_end < 8 ? before[0][eight][i] : before[1][eight][i];
                const LongFactor kept(poles.log_pole(state), 1);
#pragma unroll 1
                for (int token = tile + row_of_end * kRowTokens; token < args.tokens; ++token)
                    x = kept.times_plus(x, x1.at(token) * v.at(token));
                to[state] = x;
            }
    }
    __device__ __forceinline__ void write(float* to) const {
        if (g() != 0 || !exists) return;
#pragma unroll
        for (int group = 0; group < kConfig.groups; ++group)
#pragma unroll
            for (int eight = 0; eight < 2; ++eight)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int state = group * kHyenaGroup + state_of(eight, i);
                    if (state < args.states) to[state] = carried[group][eight][i];
                }
    }
    __device__ __forceinline__ void fill_tables() {
        const HyenaPoles poles(args, share.column);
        float* const h = shared.stage.numbers;
        poles.fill_taps(h, lane_of_warp());
        for (int group = 0; group < kConfig.groups; ++group) poles.fill(shared.groups[group], group, lane_of_warp());
        __syncwarp();
        fill_pairs(shared.taps, lane_of_warp(), [&](int x) { return x >= 0 && x < kRowTokens ? h[x] : 0.f; });
        __syncwarp();
    }
    __device__ __forceinline__ void run() {
        fill_tables();
        begin();
        const float bias = args.bias.data == nullptr ? 0.f : load_number(args.bias, share.column * args.bias_channel);
        // Loads of the next tile are in flight while this one is computed: in registers, or by cp.async where these are short.
        typename Access::Own x1, v, x2;
        const auto load = [&](int tile) {
            if constexpr (kConfig.columns) {
                fetch(shared.next.of[0], access, args.x1, tile);
                fetch(shared.next.of[1], access, args.v, tile);
                cp_async_fence();
            } else {
                access.load(x1, args.x1, tile);
                access.load(v, args.v, tile);
            }
        };
        const auto load_gate = [&](int tile) {
            if constexpr (kConfig.columns && !kConfig.only_states) {
                if (tile < share.end) fetch(shared.next.of[2], access, args.x2, tile);
                cp_async_fence();
            }
        };
        const auto wait = [&] {  // for all but the latest copies
            if constexpr (kConfig.columns) {
                cp_async_wait<kConfig.only_states ? 0 : 1>();
                __syncwarp();
            }
        };
        load(share.first);
        load_gate(share.first);
#pragma unroll 1
        for (int tile = share.first; tile < share.end; tile += kTileTokens) {
            TileSums sums;
            Parts own;
            {
                float u[kOwn];
                wait();
                if constexpr (kConfig.columns) {
                    x1 = read(access, shared.next.of[0]);
                    v = read(access, shared.next.of[1]);
                }
                multiply(u, x1, v);
                if constexpr (kConfig.columns) __syncwarp();
                access.to_row(u);
                begin_sums(sums, u, bias);
                own = parts_of_row<kParts>(u);
            }
            if constexpr (!kConfig.only_states && !kConfig.columns) access.load(x2, args.x2, tile);
            if (tile + kTileTokens < share.end)
                load(tile + kTileTokens);
            else if constexpr (kConfig.columns)
                cp_async_fence();
            if constexpr (!kConfig.only_states) add_product(sums, own, load_pairs(shared.taps, lane_of_warp()));
#pragma unroll
            for (int group = 0; group < kConfig.groups; ++group)
                if (group * kHyenaGroup < args.states) advance(group, own, sums, tile);
            if constexpr (kConfig.only_states) {
                if constexpr (kConfig.columns) __syncthreads();  // all have read the tile in shared memory
            } else {
                float z[kOwn];
                take_sums(z, sums);
                access.to_own(z);
                wait();
                if constexpr (kConfig.columns) x2 = read(access, shared.next.of[2]);
                typename Access::Own y;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) y.set(i, x2[i] * z[i]);
                store(y, access, args.y, tile);
                __syncwarp();
                load_gate(tile + kTileTokens);
            }
        }
        if constexpr (kConfig.only_states) {
            write(args.added + (row() * args.segments + share.segment) * args.states);
        } else {
            if (share.is_last(args) && args.tokens % kTileTokens == 0) write(args.last + row() * args.states);
        }
    }
};

template <HyenaLongConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_of_sm())
    hyena_long(const __grid_constant__ HyenaLongArgs args) {
    using T = Storage<kConfig.io>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaLongSharedPlan<kConfig>*>(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    HyenaShare share = hyena_share<kConfig.columns, kConfig.warps()>(args);
    if (!share.exists(args)) return;
    if constexpr (kConfig.columns) {
        using Access = HyenaTileColumns<T, kConfig.warps()>;
        const Access access{shared, share.batch, share.column - warp, args.channels, share.end};
        const bool exists = share.column < args.channels;
        share.column = min(share.column, args.channels - 1);
        HyenaLongWarp<kConfig, Access>{args, shared.warps[warp], access, share, exists}.run();
    } else {
        using Access = HyenaTileRows<T>;
        const Access access{shared.warps[warp].stage, share.batch, share.column, share.end, args.vectors};
        HyenaLongWarp<kConfig, Access>{args, shared.warps[warp], access, share, true}.run();
    }
}

}  // namespace gdn_cuda::conv
