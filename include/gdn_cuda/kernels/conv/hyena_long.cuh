// conv/hyena_long: y_t = x2_t (sum_j h_j u_{t-j} + D u_t) with u = x1 * v and h_t = sum_s R_s p_s^t, on tensor cores.
//
// A warp iterates over its tokens of one channel in tiles of 512, 16 rows of 32 (toeplitz/product.cuh). Within a row, h is a
// Toeplitz block; from row to row, the states x_s = sum_j p_s^j u_{t-j} carry everything earlier, 16 at a time:
//     states that each row adds      (16 rows x 32 tokens) (32 tokens x 16 states)
//     states before each row         a scan over the 16 rows by shuffles, starting with the warp's state
//     what they add to the row       (16 rows x 16 states) (16 states x 32 tokens)
// All operands are in registers in the layout of memory and accumulators; every value is a sum of two bf16 parts, or three
// for fp32 tensors. With few channels, several warps split the tokens of one: a first launch (only_states) computes what
// each segment adds to the states after it, and a warp of the second launch begins by carrying these through the segments
// before its own.
//
// If channels are contiguous in memory, the warps of a block have adjacent channels and the same tokens
// (hyena/tile_layouts.cuh); cp.async copies the next tile to shared memory (hyena/tile_prefetch.cuh), so that 16 warps of
// 128 registers have the channels of whole sectors.
//
// Shared memory, per warp: right operands made of the poles, 5 KB for 16 states, and 2 KB for a tile that is not in whole
// vectors of tokens, or, for contiguous channels in bf16, 3 KB for the next tile and 2 KB for the transposition.
//
// Bound: memory, 8 bytes an output in bf16 and 16 in fp32: 76 and 88 % of an H200's memory bandwidth for 16 states of 4096 x
// 65536 values, 54 % in bf16 if channels are contiguous; 48 mma for 512 outputs of 16 states take some 40 % of bf16's time.
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
    HyenaSegment segment;
    bool exists;  // false for a warp without a channel: it computes with another channel's parameters, and writes nothing
    LaneStates carried[kConfig.groups];  // the states before the tile, the same in all lanes of a t

    __device__ __forceinline__ static int g() { return lane_of_warp() / 4; }
    __device__ __forceinline__ static int t() { return lane_of_warp() % 4; }
    __device__ __forceinline__ static int state_of(int eight, int i) { return 8 * eight + 2 * t() + i; }
    __device__ __forceinline__ i64 row() const { return static_cast<i64>(segment.batch) * args.channels + segment.column; }

    // The states before the first tile.
    __device__ __forceinline__ void begin() {
        const HyenaPoles poles(args, segment.column);
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
        float x = initial_at(args.initial, segment.batch, segment.column, args.states, args.states - state);
        const LongFactor decay(poles.log_pole(state), args.segment_tokens);
        const float* added = args.added + row() * (args.segments - 1) * args.states + state;
#pragma unroll 1
        for (int earlier = 0; earlier < segment.index; ++earlier, added += args.states) x = decay.times_plus(x, *added);
        return x;
    }
    // Processes one group over one tile: adds its states' outputs to `sums`, and advances the states.
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
                const float decay = poles.half[state], x = carried[group][eight][i];
                if constexpr (!kConfig.only_states) {
                    const float row = poles.rows[g()][state];
                    const float up_first = __shfl_up_sync(0xffffffffu, first, 4);
                    const float up_second = __shfl_up_sync(0xffffffffu, second, 4);
                    before[0][eight][i] = fmaf(row, x, g() > 0 ? up_first : 0.f);
                    before[1][eight][i] = fmaf(row, fmaf(decay, x, added_first), g() > 0 ? up_second : 0.f);
                }
                carried[group][eight][i] = LongFactor(poles.tile[0][state], poles.tile[1][state])
                                               .times_plus(x, fmaf(decay, added_first, added_second));
            }
        }
        if constexpr (!kConfig.only_states) {
            add_states<false>(sums, before, poles.to_outputs);
            if (tile + kTileTokens > args.tokens) {
                write_last_states(group, before, tile);
                __syncwarp();  // mma.sync needs all lanes
            }
        }
    }
    __device__ __forceinline__ static uint4 words_of(const unsigned (&lane_words)[32][4]) {
        return *reinterpret_cast<const uint4*>(lane_words[lane_of_warp()]);
    }
    // Writes the states after the last token, which is in this tile: from those before its row, token by token.
    __device__ __forceinline__ void write_last_states(int group, const RowStates& before, int tile) const {
        const int left = args.tokens - tile, row_of_end = left / kRowTokens;
        if (g() != row_of_end % 8 || !exists) return;
        int column = segment.column;
        if constexpr (kConfig.columns)  // opaque: otherwise addresses are computed before the loop over tiles, and occupy
                                        // registers
            asm volatile("" : "+r"(column));
        const HyenaPoles poles(args, column);
        const HyenaRow<T> x1(args.x1, segment.batch, column), v(args.v, segment.batch, column);
        float* const to = args.last + (static_cast<i64>(segment.batch) * args.channels + column) * args.states;
#pragma unroll
        for (int eight = 0; eight < 2; ++eight)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int state = group * kHyenaGroup + state_of(eight, i);
                if (state >= args.states) continue;
                float x = row_of_end < 8 ? before[0][eight][i] : before[1][eight][i];
                const LongFactor decay(poles.log_pole(state), 1);
#pragma unroll 1
                for (int token = tile + row_of_end * kRowTokens; token < args.tokens; ++token)
                    x = decay.times_plus(x, x1.at(token) * v.at(token));
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
        const HyenaPoles poles(args, segment.column);
        float* const h = shared.stage.values;
        poles.fill_taps(h, lane_of_warp());
        for (int group = 0; group < kConfig.groups; ++group) poles.fill(shared.groups[group], group, lane_of_warp());
        __syncwarp();
        fill_pairs(shared.taps, lane_of_warp(), [&](int x) { return x >= 0 && x < kRowTokens ? h[x] : 0.f; });
        __syncwarp();
    }
    // Whether the segment adds nothing to a summary; the same for all warps of a block that share its tiles.
    __device__ __forceinline__ bool decays_before_result() const {
        if (args.until_result < 0) return false;
        const bool decays = HyenaPoles(args, segment.column).decay_over(args.until_result + args.tokens - segment.end);
        return kConfig.columns ? !__syncthreads_or(!decays) : decays;
    }
    __device__ __forceinline__ float* added() const {
        return args.added + (row() * args.segments + segment.index) * args.states;
    }
    __device__ __forceinline__ void run() {
        if constexpr (kConfig.only_states)
            if (decays_before_result()) {
                begin();  // zeros
                return write(added());
            }
        fill_tables();
        begin();
        const float bias = args.bias.data == nullptr ? 0.f : load_float(args.bias, segment.column * args.bias_channel);
        // The next tile is prefetched while this one is computed: to registers, or by cp.async where registers do not
        // suffice.
        typename Access::Own x1, v, x2;
        const auto load = [&](int tile) {
            if constexpr (kConfig.columns) {
                fetch(shared.next.slots[0], access, args.x1, tile);
                fetch(shared.next.slots[1], access, args.v, tile);
                cp_async_fence();
            } else {
                access.load(x1, args.x1, tile);
                access.load(v, args.v, tile);
            }
        };
        const auto load_gate = [&](int tile) {
            if constexpr (kConfig.columns && !kConfig.only_states) {
                if (tile < segment.end) fetch(shared.next.slots[2], access, args.x2, tile);
                cp_async_fence();
            }
        };
        const auto wait = [&] {  // for all but the latest copies
            if constexpr (kConfig.columns) {
                cp_async_wait<kConfig.only_states ? 0 : 1>();
                __syncwarp();
            }
        };
        load(segment.first);
        load_gate(segment.first);
#pragma unroll 1
        for (int tile = segment.first; tile < segment.end; tile += kTileTokens) {
            TileSums sums;
            Parts own;
            {
                float u[kOwn];
                wait();
                if constexpr (kConfig.columns) {
                    x1 = read(access, shared.next.slots[0]);
                    v = read(access, shared.next.slots[1]);
                }
                multiply(u, x1, v);
                if constexpr (kConfig.columns) __syncwarp();
                access.to_row(u);
                begin_sums(sums, u, bias);
                own = parts_of_row<kParts>(u);
            }
            if constexpr (!kConfig.only_states && !kConfig.columns) access.load(x2, args.x2, tile);
            if (tile + kTileTokens < segment.end)
                load(tile + kTileTokens);
            else if constexpr (kConfig.columns)
                cp_async_fence();
            if constexpr (!kConfig.only_states) add_product(sums, own, load_pairs(shared.taps, lane_of_warp()));
#pragma unroll
            for (int group = 0; group < kConfig.groups; ++group)
                if (group * kHyenaGroup < args.states) advance(group, own, sums, tile);
            if constexpr (kConfig.only_states) {
                if constexpr (kConfig.columns) __syncthreads();  // all warps have read the tile in shared memory
            } else {
                float z[kOwn];
                unpack_sums(z, sums);
                access.to_own(z);
                wait();
                if constexpr (kConfig.columns) x2 = read(access, shared.next.slots[2]);
                typename Access::Own y;
#pragma unroll
                for (int i = 0; i < kOwn; ++i) y.set(i, x2[i] * z[i]);
                store(y, access, args.y, tile);
                __syncwarp();
                load_gate(tile + kTileTokens);
            }
        }
        if constexpr (kConfig.only_states) {
            write(added());
        } else {
            if (segment.is_last(args) && args.tokens % kTileTokens == 0) write(args.last + row() * args.states);
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
    HyenaSegment segment = hyena_segment<kConfig.columns, kConfig.warps()>(args);
    if (!segment.exists(args)) return;
    if constexpr (kConfig.columns) {
        using Access = HyenaTileColumns<T, kConfig.warps()>;
        const Access access{shared, segment.batch, segment.column - warp, args.channels, segment.end};
        const bool exists = segment.column < args.channels;
        segment.column = min(segment.column, args.channels - 1);
        HyenaLongWarp<kConfig, Access>{args, shared.warps[warp], access, segment, exists}.run();
    } else {
        using Access = HyenaTileRows<T>;
        const Access access{shared.warps[warp].stage, segment.batch, segment.column, segment.end, args.vectors};
        HyenaLongWarp<kConfig, Access>{args, shared.warps[warp], access, segment, true}.run();
    }
}

}  // namespace gdn_cuda::conv
