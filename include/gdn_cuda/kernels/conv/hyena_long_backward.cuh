// conv/hyena_long_backward: gradients of y_t = x2_t (sum_j h_j u_{t-j} + D u_t) with u = x1 * v and h_t = sum_s R_s p_s^t.
//
// With z = y / x2 and dz = grad x2, the adjoint of the recurrence x_t = p x_{t-1} + u_t is l_t = R dz_t + p l_{t+1}:
//     dx2 = grad z,  du = sum_s l_s + D dz,  dR = sum_t dz_t x_t,  dlog p = sum_t l_t p x_{t-1}
// A warp iterates backwards over its tokens of one channel, in tiles of 512, 16 rows of 32. conv/hyena_long_states wrote the
// states before each tile; the warp carries l. A tile is computed as in conv/hyena_long, twice: forward for z, backward for
// du. For each row, let x be the states before it, l those after it, q and q' the sums of p^i dz_i and i p^i dz_i, u' that
// of (31 - i) p^(31 - i) u_i, and c_j that of dz_i u_{i-j}. It adds
//     to dR       p q x + sum_j p^j c_j
//     to dlog p   R p x (q + q') + l (32 p^32 x + u') + R sum_j j p^j c_j
// q, q', u' and c are products on tensor cores, c of transposed tiles (its sum is over rows); every value is a sum of two
// bf16 parts, or three for fp32 tensors. What segments add to the gradients of parameters is summed after the kernel, in a
// fixed order.
//
// If channels are contiguous in memory, the warps of a block have adjacent channels and the same tokens
// (hyena/tile_layouts.cuh), for up to 16 states; with more states, the host copies tensors into the other layout
// (common/transposed_copy). cp.async copies the next tile to shared memory (hyena/tile_prefetch.cuh) while one is computed:
// with 8 warps per SM nothing else hides the latency of memory. The states of a tile are loaded while its tokens go through
// shared memory.
//
// Shared memory, per warp: right operands made of the poles, 7 KB for 16 states; 7 KB for two tiles in bf16; and a stage for
// rows without vectors, or 4 KB for the transposition of contiguous channels.
//
// Bound: memory, 14 bytes a token in bf16 and 28 in fp32, and 4 or 8 for conv/hyena_long_states; 144 mma for 512 tokens of
// 16 states.
#pragma once

#include <gdn_cuda/kernels/conv/hyena/tile_prefetch.cuh>
#include <gdn_cuda/kernels/conv/hyena_long/state_products.cuh>

namespace gdn_cuda::conv {

// Sums of dz_i u_k over rows: [m][p][i] is i = 8 (g / 2) + 2 (2 m + i / 2) + g % 2 and k = 8 t + 2 p + i % 2.
using Correlation = float[2][4][4];

template <int kParts>
__device__ __forceinline__ void add_correlation(Correlation& sums, const TileParts<kParts>& dz, const TileParts<kParts>& u) {
    unsigned right[kParts][2][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int p = 0; p < 4; ++p) right[part][half][p] = transposed(u.at[part][half][p]);
#pragma unroll
    for (int left = kParts - 1; left >= 0; --left)
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            unsigned a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = transposed(dz.at[left][i / 2][2 * m + i % 2]);
#pragma unroll
            for (int part = kParts - 1 - left; part >= 0; --part)
#pragma unroll
                for (int p = 0; p < 4; ++p) mma_m16n8k16<DType::bf16>(sums[m][p], a, right[part][0][p], right[part][1][p]);
        }
}

__device__ __forceinline__ float sum_of_lanes(float x, int first_step) {
    for (int step = first_step; step < 32; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// Access: HyenaTileRows or HyenaTileColumns. HyenaTileColumns has two tiles in shared memory, one for u and one for dz.
template <HyenaLongBackwardConfig kConfig, class Access>
struct HyenaLongBackwardWarp {
    using T = Storage<kConfig.io>;
    static constexpr int kParts = kConfig.parts();
    using Parts = TileParts<kParts>;

    const HyenaLongBackwardArgs& args;
    HyenaLongBackwardShared<kConfig>& shared;
    Access dz_tile, u_tile;
    HyenaSegment segment;
    HyenaPoles poles;
    Correlation correlation;  // over the tiles so far

    __device__ __forceinline__ HyenaLongBackwardWarp(const HyenaLongBackwardArgs& args,
                                                     HyenaLongBackwardShared<kConfig>& shared, const Access& dz_tile,
                                                     const Access& u_tile, const HyenaSegment& segment)
        : args(args),
          shared(shared),
          dz_tile(dz_tile),
          u_tile(u_tile),
          segment(segment),
          poles(args.forward, segment.column),
          correlation{} {}

    __device__ __forceinline__ int states() const { return args.forward.states; }
    __device__ __forceinline__ int tokens() const { return args.forward.tokens; }
    __device__ __forceinline__ i64 row() const {
        return static_cast<i64>(segment.batch) * args.forward.channels + segment.column;
    }
    __device__ __forceinline__ i64 segment_row() const { return row() * args.forward.segments + segment.index; }
    __device__ __forceinline__ bool ends_within(int tile) const { return tile + kTileTokens > tokens(); }
    __device__ __forceinline__ float last_state_gradient(int state) const {
        return initial_at(args.grad_state, segment.batch, segment.column, states(), states() - state);
    }

    // ---- Before the first tile

    __device__ __forceinline__ void fill_tables() {
        float* const h = shared.stage.values;
        const int lane = lane_of_warp();
        poles.fill_taps(h, lane);
        for (int group = 0; group < kConfig.groups; ++group) fill_powers(shared.groups[group], poles, group, lane);
        __syncwarp();
        fill_pairs(shared.taps, lane, [&](int x) { return x >= 0 && x < kRowTokens ? h[x] : 0.f; });
        fill_pairs(shared.taps_back, lane, [&](int x) { return x <= 0 && x > -kRowTokens ? h[-x] : 0.f; });
        for (int state = lane; state < states(); state += 32) {
            shared.first[state] = first_state(state);
            shared.last_state_slopes[state] = 0.f;
        }
        __syncwarp();
    }
    __device__ __forceinline__ bool begins_with_zeros() const {
        return segment.index == 0 && args.forward.initial.values.data == nullptr;
    }
    __device__ __forceinline__ float first_state(int state) const {
        float x = initial_at(args.forward.initial, segment.batch, segment.column, states(), states() - state);
        const LongFactor decay(poles.log_pole(state), args.forward.segment_tokens);
        const float* added = args.added + row() * args.forward.segments * states() + state;
#pragma unroll 1
        for (int earlier = 0; earlier < segment.index; ++earlier, added += states()) x = decay.times_plus(x, *added);
        return x;
    }
    // Initializes the gradients of the states after the segment. If the last token is inside a tile, add_last_state_gradient
    // adds the final state's gradient instead.
    __device__ __forceinline__ void begin() {
        for_groups([&](int group, HyenaCarriedBack& carried) {
            LaneStates after = {}, none = {};
            for_states(group, states(), [&](int eight, int i, int state) { after[eight][i] = gradient_after(state); });
            store_states(carried.after[lane_of_warp()], after);
            store_states(carried.dresidues[lane_of_warp()], none);
            store_states(carried.dpoles[lane_of_warp()], none);
        });
    }
    __device__ __forceinline__ float gradient_after(int state) const {
        const int last = args.forward.segments - 1;
        if (segment.index == last) return tokens() % kTileTokens == 0 ? last_state_gradient(state) : 0.f;
        float x = last_state_gradient(state);
        int length = tokens() - last * args.forward.segment_tokens;
        const float* added = args.added_back + (row() * args.forward.segments + last) * states() + state;
#pragma unroll 1
        for (int later = last; later > segment.index; --later, added -= states()) {
            x = LongFactor(poles.log_pole(state), length).times_plus(x, *added);
            length = args.forward.segment_tokens;
        }
        return x;
    }

    // ---- A tile

    // The states before a tile from conv/hyena_long_states, and the contribution of the states before the segment.
    __device__ __forceinline__ const float* added_before(int tile) const {
        const i64 row_tiles = (static_cast<i64>(tokens()) + kTileTokens - 1) / kTileTokens;
        return args.states + (row() * row_tiles + tile / kTileTokens) * states();
    }
    __device__ __forceinline__ float first_before(int tile, int state) const {
        return pole_power(poles.log_pole(state), tile - segment.first) * shared.first[state];
    }
    __device__ __forceinline__ float state_before(int tile, int state) const {
        return added_before(tile)[state] + (begins_with_zeros() ? 0.f : first_before(tile, state));
    }
    __device__ __forceinline__ void load_added_before(LaneStates& x, int group, int tile) const {
        const float* const added = added_before(tile);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i / 2][i % 2] = 0.f;
        for_states(group, states(), [&](int eight, int i, int state) { x[eight][i] = added[state]; });
    }
    __device__ __forceinline__ void add_first_before(LaneStates& x, int group, int tile) const {
        if (begins_with_zeros()) return;
        for_states(group, states(), [&](int eight, int i, int state) { x[eight][i] += first_before(tile, state); });
    }
    // Processes one group over one tile, with the states `x` before it: adds its states' terms to the sums of z and du, and
    // to those of the parameters.
    __device__ __forceinline__ void advance(int group, const Parts& u, const Parts& dz, TileSums& z, TileSums& du,
                                            LaneStates& x) {
        const HyenaPowerGroup<kParts>& powers = shared.groups[group];
        HyenaCarriedBack& carried = shared.carried[group];
        RowStates before, after;  // states before a row, and gradients of those after it
        LaneStates sums;
        {
            RowSums added = {};
            add_tokens<false>(added, u, powers.from_tokens);
            scan_rows<false>(before, added, x, powers);
        }
        {
            RowSums added = {};
            LaneStates back;
            add_tokens<true>(added, dz, powers.from_tokens);
            load_states(sums, carried.dresidues[lane_of_warp()]);
            for_rows([&](int half, int eight, int i, int) {
                sums[eight][i] = fmaf(added[eight][2 * half + i], before[half][eight][i], sums[eight][i]);
            });
            store_states(carried.dresidues[lane_of_warp()], sums);
            for_rows([&](int half, int eight, int i, int state) { added[eight][2 * half + i] *= powers.gains[state]; });
            load_states(back, carried.after[lane_of_warp()]);
            scan_rows<true>(after, added, back, powers);
            store_states(carried.after[lane_of_warp()], back);
        }
        add_states<true>(du, after, powers.to_tokens);
        {
            RowSums slopes = {}, back_slopes = {};
            add_tokens<false>(slopes, u, powers.slopes);
            add_tokens<true>(back_slopes, dz, powers.slopes);
            load_states(sums, carried.dpoles[lane_of_warp()]);
            for_rows([&](int half, int eight, int i, int state) {
                const float x = before[half][eight][i], l = after[half][eight][i], row = kRowTokens * powers.doubled[0][state];
                const float x_factor = fmaf(powers.gains[state], back_slopes[eight][2 * half + i], row * l);
                sums[eight][i] = fmaf(l, slopes[eight][2 * half + i], fmaf(x_factor, x, sums[eight][i]));
            });
            store_states(carried.dpoles[lane_of_warp()], sums);
        }
        for_rows([&](int half, int eight, int i, int state) { before[half][eight][i] *= powers.gains[state]; });
        add_states<false>(z, before, powers.to_tokens);
    }
    // Calls visit(half, eight, i, state of the group) for a lane's states of both of its rows.
    __device__ __forceinline__ static void for_rows(auto&& visit) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int eight = 0; eight < 2; ++eight)
#pragma unroll
                for (int i = 0; i < 2; ++i) visit(half, eight, i, state_of_lane(eight, i));
    }
    __device__ __forceinline__ void for_parked(auto&& visit) {
        if constexpr (kConfig.parks_correlation()) {
#pragma unroll
            for (int i = 0; i < 8; ++i)
                visit(correlation[i / 4][i % 4], *reinterpret_cast<float4*>(shared.parked[i][lane_of_warp()]));
        }
    }
    __device__ __forceinline__ void park_correlation() {
        for_parked([](const float(&x)[4], float4& parked) { parked = {x[0], x[1], x[2], x[3]}; });
    }
    __device__ __forceinline__ void load_correlation() {
        for_parked(
            [](float(&x)[4], const float4& parked) { x[0] = parked.x, x[1] = parked.y, x[2] = parked.z, x[3] = parked.w; });
    }
    // A tile's factors in shared memory.
    enum Factor { kX1, kV, kGrad };
    __device__ __forceinline__ void load_factors_of_dz(int tile, int buffer) {
        fetch(shared.factors[buffer][kGrad], dz_tile, args.grad, tile);
        fetch(shared.x2, dz_tile, args.forward.x2, tile);
        cp_async_fence();
    }
    __device__ __forceinline__ void load_factors_of_u(int tile, int buffer) {
        fetch(shared.factors[buffer][kX1], u_tile, args.forward.x1, tile);
        fetch(shared.factors[buffer][kV], u_tile, args.forward.v, tile);
        cp_async_fence();
    }
    __device__ __forceinline__ void load(int tile, int buffer) {
        load_factors_of_dz(tile, buffer);
        load_factors_of_u(tile, buffer);
    }
    __device__ __forceinline__ void store_product(const float (&x)[kOwn], const HyenaOwnSlot<int(sizeof(T))>& factor,
                                                  const HyenaTensor& to, int tile) const {
        typename Access::Own product = read(u_tile, factor);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) product.set(i, x[i] * product[i]);
        gdn_cuda::conv::store(product, u_tile, to, tile);
    }
    // Adds the final state's gradient in the tile of the last token. A row cannot carry it, because it would begin with
    // p^-31 times the gradient.
    __device__ __forceinline__ void add_last_state_gradient(TileSums& du, int tile) {
        const HyenaRow<T> x1(args.forward.x1, segment.batch, segment.column), v(args.forward.v, segment.batch, segment.column);
        const int length = tokens() - tile;
#pragma unroll 1
        for (int state = 0; state < states(); ++state) {
            const float gradient = last_state_gradient(state);
            if (gradient == 0.f) continue;
            const float log = poles.log_pole(state);
            float slope = 0.f;
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < kEight; ++i) {
                    const int token = ToeplitzTile<T>::first(tile, half) + i, after = tokens() - 1 - token;
                    if (after < 0) continue;
                    const float power = pole_power(log, after);
                    sum_of(du, half, i) = fmaf(power, gradient, sum_of(du, half, i));
                    slope = fmaf(after * power, x1.at(token) * v.at(token), slope);
                }
            slope = sum_of_lanes(slope, 1);
            slope = fmaf(length * pole_power(log, length), state_before(tile, state), slope);
            if (lane_of_warp() == 0) shared.last_state_slopes[state] = gradient * slope;
        }
        for_groups([&](int group, HyenaCarriedBack& carried) {
            for_states(group, states(), [&](int eight, int i, int state) {
                float& x = carried.after[lane_of_warp()][2 * eight + i];
                x = fmaf(pole_power(poles.log_pole(state), length), last_state_gradient(state), x);
            });
        });
    }
    __device__ __forceinline__ void run() {
        fill_tables();
        begin();
        park_correlation();
        const HyenaLongArgs& forward = args.forward;
        const float bias = load_float(forward.bias, segment.column * forward.bias_channel);
        const int tiles = (segment.end - segment.first + kTileTokens - 1) / kTileTokens;
        constexpr bool kAhead = kConfig.buffers() == 2;
        int buffer = 0, tile = segment.first + (tiles - 1) * kTileTokens;
        if (kAhead && tiles > 0) load(tile, buffer);
#pragma unroll 1
        for (; tile >= segment.first; tile -= kTileTokens) {
            if constexpr (!kAhead) load(tile, buffer);
            auto& factors = shared.factors[buffer];
            TileSums z, du;
            Parts own, back;
            LaneStates before;
            if constexpr (kConfig.loads_states_ahead()) load_added_before(before, 0, tile);  // in flight until `advance`
            float x[kOwn], y[kOwn];
            cp_async_wait<0>();
            __syncwarp();
            multiply(x, read(dz_tile, factors[kGrad]), read(dz_tile, shared.x2));
            dz_tile.store_own(x);
            multiply(y, read(u_tile, factors[kX1]), read(u_tile, factors[kV]));
            u_tile.store_own(y);
            u_tile.sync();
            dz_tile.load_row(x);
            begin_sums(du, x, bias);
            back = parts_of_row<kParts>(x);
            u_tile.load_row(y);
            begin_sums(z, y, bias);
            own = parts_of_row<kParts>(y);
            __syncwarp();
            // The segment's first tile is copied once more although nothing follows it: a branch would wait for loads in
            // flight.
            const int next = max(tile - kTileTokens, segment.first);
            if constexpr (kAhead) buffer ^= 1;
            load_correlation();
            add_correlation(correlation, back, own);
            park_correlation();
            // Copies of many rows of few bytes occupy load-store units as long as the products between them take.
            if constexpr (kAhead) load_factors_of_dz(next, buffer);
            add_product(z, own, load_pairs(shared.taps, lane_of_warp()));
            if constexpr (kAhead) load_factors_of_u(next, buffer);
            add_product(du, back, load_pairs(shared.taps_back, lane_of_warp()));
            for_groups([&](int group, HyenaCarriedBack&) {
                if constexpr (!kConfig.loads_states_ahead()) load_added_before(before, group, tile);
                add_first_before(before, group, tile);
                advance(group, own, back, z, du, before);
            });
            if (ends_within(tile)) add_last_state_gradient(du, tile);
            unpack_sums(x, z);
            unpack_sums(y, du);
            u_tile.store_row(x);
            dz_tile.store_row(y);
            u_tile.sync();
            u_tile.load_own(x);
            store_product(x, factors[kGrad], args.dx2, tile);
            dz_tile.load_own(y);
            store_product(y, factors[kV], args.dx1, tile);
            store_product(y, factors[kX1], args.dv, tile);
            __syncwarp();
        }
        finish();
    }
    // ---- After the last tile: the gradients of the parameters

    __device__ __forceinline__ void finish() {
        const int lane = lane_of_warp(), g = row_of_lane(), t = lane % 4, S = states();
        load_correlation();
        __syncwarp();
        for (int state = lane; state < S; state += 32) {
            const HyenaCarriedBack& carried = shared.carried[state / kHyenaGroup];
            const int index_in_group = state % kHyenaGroup, lane_of_state = index_in_group % 8 / 2,
                      at = index_in_group / 8 * 2 + index_in_group % 2;
            float dresidue = 0.f, dpole = shared.last_state_slopes[state];
            for (int other = lane_of_state; other < 32; other += 4) {
                dresidue += carried.dresidues[other][at];
                dpole += carried.dpoles[other][at];
            }
            shared.first[state] = dresidue;
            shared.last_state_slopes[state] = dpole;
            if (segment.index == 0 && args.dinitial != nullptr)
                args.dinitial[row() * S + state] = carried.after[lane_of_state][at];
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int p = 0; p < 4; ++p)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    shared.correlation[8 * (g / 2) + 2 * (2 * m + i / 2) + g % 2][8 * t + 2 * p + i % 2] = correlation[m][p][i];
        __syncwarp();
        float* const lags = shared.stage.values;
        float sum = 0.f;
        for (int i = lane; i < kRowTokens; ++i) sum += shared.correlation[i][i - lane];
        lags[lane] = sum;
        if (lane == 0) args.dbias[segment_row()] = sum;
        __syncwarp();
        for (int state = lane; state < S; state += 32) {
            const float log = poles.log_pole(state), residue = poles.residue(state);
            const float rows = pole_power(log, 1) * shared.first[state];
            float within = 0.f, slope = 0.f;
#pragma unroll 1
            for (int lag = 0; lag < kRowTokens; ++lag) {
                const float term = pole_power(log, lag) * lags[lag];
                within += term;
                slope = fmaf(static_cast<float>(lag), term, slope);
            }
            float* const to = args.dpoles + segment_row() * 2 * S + state;
            to[0] = rows + within;
            to[S] = fmaf(residue, rows + slope, shared.last_state_slopes[state]);
        }
    }
    __device__ __forceinline__ void for_groups(auto&& visit) {
#pragma unroll 1
        for (int group = 0; group < kConfig.groups && group * kHyenaGroup < states(); ++group)
            visit(group, shared.carried[group]);
    }
};

template <HyenaLongBackwardConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_of_sm())
    hyena_long_backward(const __grid_constant__ HyenaLongBackwardArgs args) {
    using T = Storage<kConfig.io>;
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<HyenaLongBackwardSharedPlan<kConfig>*>(memory);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const HyenaSegment segment = hyena_segment<kConfig.columns, kConfig.warps()>(args.forward);
    if (!segment.exists(args.forward)) return;
    auto& warp_shared = shared.warps[warp];
    if constexpr (kConfig.columns) {
        using Access = HyenaTileColumns<T, kConfig.warps()>;
        const Access dz_tile{shared.dz, segment.batch, segment.column - warp, args.forward.channels, segment.end};
        const Access u_tile{shared.u, segment.batch, segment.column - warp, args.forward.channels, segment.end};
        HyenaLongBackwardWarp<kConfig, Access>{args, warp_shared, dz_tile, u_tile, segment}.run();
    } else {
        using Access = HyenaTileRows<T>;
        const Access access{warp_shared.stage, segment.batch, segment.column, segment.end, args.forward.vectors};
        HyenaLongBackwardWarp<kConfig, Access>{args, warp_shared, access, access, segment}.run();
    }
}

}  // namespace gdn_cuda::conv
