// The roles of gdn/prefill that need no state and run ahead: loads, (I + A)^-1, and the scores of queries against keys.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_common.cuh>

namespace gdn_cuda::gdn {

// Gates of tokens 2 lane and 2 lane + 1, cumulated from the first of the chunk, in units of ln 2.
__device__ __forceinline__ float2 cumulate(float2 gate) {
    constexpr float kLog2e = 1.4426950408889634f;
    const int lane = threadIdx.x % 32;
    gate = {gate.x * kLog2e, gate.y * kLog2e};
    float sum = gate.x + gate.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += before;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    return {gate.x + (lane == 0 ? 0.f : before), sum};
}

__device__ __forceinline__ float2 pair_at(const float* numbers) {
    return *reinterpret_cast<const float2*>(numbers);
}

// log2(1 / sqrt(x.x + epsilon)) of a row of swizzled tiles.
template <PrefillConfig kConfig>
__device__ __forceinline__ float log_inverse_norm(const PrefillTile* tiles, int row) {
    float square = 0.f;
#pragma unroll
    for (int tile = 0; tile < kConfig.key_tiles(); ++tile)
#pragma unroll
        for (int piece = 0; piece < 8; ++piece) {
            if (tile * kTileElements + piece * 8 >= kConfig.head_k) continue;
            const uint4 eight = load_shared(row_piece(tile_row(tiles[tile].bytes, row), piece));
            const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 x = unpack<kConfig.io>(pairs[i]);
                square = fmaf(x.x, x.x, fmaf(x.y, x.y, square));
            }
        }
    return -0.5f * __log2f(square + kNormEpsilon);
}

// left (64 x k) right^T (k x 64): both chunks of tokens, k elements a token.
template <PrefillConfig kConfig>
__device__ __forceinline__ void start_token_products(float (&products)[32], const PrefillTile* left, const PrefillTile* right) {
    const auto left_operand = tile_descriptor(left, 0), right_operand = tile_descriptor(right, 0);
    products_begin();
#pragma unroll
    for (int step = 0; step < kConfig.head_k / 16; ++step)
        Product<kConfig.io, 64, true>::run(products, left_operand + along(step), right_operand + along(step), step > 0);
    products_commit();
}

template <PrefillConfig kConfig>
struct PrefillHelper : Lane {
    using Plan = PrefillSharedPlan<kConfig>;

    Plan& shared;
    const PrefillArgs& args;
    const int index;  // among the helper groups
    const PrefillWork& work = shared.work;
    typename Plan::Scratch& scratch = shared.scratch[index];

    __device__ __forceinline__ PrefillHelper(Plan& shared, const PrefillArgs& args, int index)
        : shared(shared), args(args), index(index) {
        find_place();
    }

    __device__ __forceinline__ void gather() const { meet(kHelpersMeet + index, kWarpgroup); }
    __device__ __forceinline__ int row_meeting(int row) const { return kBlocksMeet + index * kBlockRowsAwaited + row; }
    __device__ __forceinline__ auto& scalars_of(int chunk) { return scratch.scalars[chunk / kConfig.helper_groups % 3]; }

    // One thread's.
    __device__ __forceinline__ void bring_tiles(int chunk, const Turn<kConfig.stages>& turn) {
        auto& stage = shared.stages[turn.stage];
        Barrier& loaded = barrier(shared.loaded[turn.stage]);
        const int token = static_cast<int>(work.start) + chunk * kChunk;
        const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
        const auto bring = [&](PrefillTile& tile, const TensorMap& map, int element, int head) {
            load_tile(tile.bytes, map, {element, head, token, batch}, loaded);
        };
        barrier(shared.free[turn.stage]).wait(turn.parity ^ 1);
        loaded.expect((2 * kConfig.key_tiles() + kConfig.value_groups) * static_cast<int>(sizeof(PrefillTile)));
#pragma unroll
        for (int i = 0; i < kConfig.key_tiles(); ++i) {
            bring(stage.key[i], args.key, i * kTileElements, work.key_head);
            bring(stage.query[i], args.query, i * kTileElements, work.key_head);
        }
#pragma unroll
        for (int i = 0; i < kConfig.value_groups; ++i)
            bring(stage.value[i], args.value, work.first_row + i * kValueRows, work.head);
    }
    // One warp's: gates and betas of tokens 2 lane and 2 lane + 1, asked for long before they are used.
    struct ScalarStream {
        const char* at;
        unsigned raw[2];

        __device__ __forceinline__ ScalarStream(const Scalars& of, const PrefillWork& work, int first_token) {
            const i64 token = work.start + first_token + 2 * (threadIdx.x % 32);
            at = static_cast<const char*>(of.values.data) +
                 (work.sequence * of.batch + token * of.token + work.head * of.head) * bytes_of(of.values.type);
        }
        __device__ __forceinline__ void ask(const Scalars& of, int count, int chunks_on) {
            const i64 next = of.token * bytes_of(of.values.type);
            const int first = 2 * (threadIdx.x % 32);
            raw[0] = raw[1] = 0;
            if (first < count) raw[0] = load_raw({at, of.values.type}, 0);
            if (first + 1 < count) raw[1] = load_raw({at + next, of.values.type}, 0);
            at += next * (chunks_on * kChunk);
        }
        __device__ __forceinline__ float2 take(DType type) const { return {number_of(raw[0], type), number_of(raw[1], type)}; }
    };
    __device__ __forceinline__ void ask(int chunk, ScalarStream& gates, ScalarStream& betas) const {
        if (chunk >= work.chunks) return;
        gates.ask(args.recurrence.gate, tokens_in(work, chunk), kConfig.helper_groups);
        betas.ask(args.recurrence.beta, tokens_in(work, chunk), kConfig.helper_groups);
    }
    // Tokens past the end have zeros: they neither decay nor change the state.
    __device__ __forceinline__ void bring_scalars(int chunk, const Turn<kConfig.stages>& turn, const ScalarStream& gates,
                                                  const ScalarStream& betas) {
        auto& scalars = scalars_of(chunk);
        reinterpret_cast<float2*>(scalars.gate)[lane] = cumulate(gates.take(args.recurrence.gate.values.type));
        reinterpret_cast<float2*>(scalars.beta)[lane] = betas.take(args.recurrence.beta.values.type);
        barrier(shared.loaded[turn.stage]).arrive();
    }
    // The first two warps have the least to do for the inverse, so they bring what a later chunk needs.
    __device__ __forceinline__ void bring(int chunk, const Turn<kConfig.stages>& turn, ScalarStream& gates,
                                          ScalarStream& betas) {
        if (chunk >= work.chunks) return;
        if (thread == 0) bring_tiles(chunk, turn);
        if (warp == 1) {
            bring_scalars(chunk, turn, gates, betas);
            ask(chunk + kConfig.helper_groups, gates, betas);
        }
        __syncwarp();
    }
    __device__ __forceinline__ typename Plan::Block& block(int row, int column) const {
        return scratch.blocks[row * (row + 1) / 2 + column];
    }

    // Keys past the end of a packed sequence are the next one's: not ours to multiply, even by zero.
    __device__ __forceinline__ void clear_keys_from(typename Plan::Stage& stage, int count) {
        for (int i = thread; i < (kChunk - count) * kConfig.key_tiles() * 8; i += kWarpgroup) {
            const int row = count + i / (kConfig.key_tiles() * 8), piece = i % (kConfig.key_tiles() * 8);
            store_shared(row_piece(tile_row(stage.key[piece / 8].bytes, row), piece % 8), uint4{});
        }
    }

    // Row and column factors of a token's key (half of the threads) or query, for the helpers' matrices and for the state's
    // owners.
    __device__ __forceinline__ void share_factors(const typename Plan::Stage& stage, typename Plan::Scratch::Scalars& scalars,
                                                  typename Plan::Factors& factors) {
        const int token = thread % kChunk;
        const bool of_key = thread < kChunk;
        const float log_norm =
            args.recurrence.qk_norm ? log_inverse_norm<kConfig>(of_key ? stage.key : stage.query, token) : 0.f;
        const float gate = scalars.gate[token], end = scalars.gate[kChunk - 1], scale = args.recurrence.scale;
        if (of_key) {
            scalars.column[token] = gate - log_norm;
            scalars.of_key[token] = scalars.beta[token] * exp2_fast(log_norm);
            factors.of_key[token] = exp2_fast(gate + log_norm);
            factors.of_update[token] = exp2_fast(end - gate + log_norm);
        } else {
            scalars.of_query[token] = scale * exp2_fast(log_norm);
            factors.of_query[token] = scale * exp2_fast(gate + log_norm);
            if (token == 0) factors.decay = exp2_fast(end);
        }
    }

    // Rows g and g + 8 of the warp's sixteen, columns 8 n + 2 t and the next.
    __device__ __forceinline__ unsigned pair_row(const PrefillTile& tile) const {
        return tile_row(tile.bytes, 16 * warp + g) + 4 * t;
    }

    // Products of tokens times row factors and exp(G_i - G_j) r_j, in place; above the diagonal, anything.
    __device__ __forceinline__ void decay(float (&products)[32], const float (&factors)[kChunk],
                                          const typename Plan::Scratch::Scalars& scalars) {
        const int row = 16 * warp + g;
        const float gate[2] = {scalars.gate[row], scalars.gate[row + 8]}, factor[2] = {factors[row], factors[row + 8]};
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float2 column = pair_at(&scalars.column[8 * n + 2 * t]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                products[4 * n + i] *= factor[i / 2] * exp2_fast(gate[i / 2] - (i % 2 == 0 ? column.x : column.y));
        }
    }
    // P = scale r_i r_j exp(G_i - G_j) q_i.k_j up to the diagonal.
    __device__ __forceinline__ void store_scores(const float (&products)[32], PrefillTile& scores) {
        const int distance = 16 * warp + g - 2 * t;
        const unsigned to = pair_row(scores);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                store_shared(row_piece(to, n) + half * 1024,
                             pack<kConfig.io>(distance >= 8 * n - 8 * half ? products[4 * n + 2 * half] : 0.f,
                                              distance > 8 * n - 8 * half ? products[4 * n + 2 * half + 1] : 0.f));
    }
    // A = beta_i r_i r_j exp(G_i - G_j) k_i.k_j, of which only what is below the diagonal will be read.
    __device__ __forceinline__ void store_blocks(const float (&products)[32]) {
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (n / 2 <= warp)
                    *reinterpret_cast<float2*>(&block(warp, n / 2).at[g + 8 * half][n % 2 * 8 + 2 * t]) = {
                        products[4 * n + 2 * half], products[4 * n + 2 * half + 1]};
    }

    // (I + A)^-1 of this warp's diagonal block, in place: lane c has column c, by substitution.
    __device__ __forceinline__ void invert_diagonal() {
        auto& diagonal = block(warp, warp);
        const int column = lane % 16;
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            float sum = i == column ? 1.f : 0.f;
#pragma unroll
            for (int m = 0; m < i; m += 4) {
                const float4 a = *reinterpret_cast<const float4*>(&diagonal.at[i][m]);
                sum = fmaf(-a.x, x[m], sum);
                if (m + 1 < i) sum = fmaf(-a.y, x[m + 1], sum);
                if (m + 2 < i) sum = fmaf(-a.z, x[m + 2], sum);
                if (m + 3 < i) sum = fmaf(-a.w, x[m + 3], sum);
            }
            x[i] = sum;
        }
        __syncwarp();
        if (lane < 16)
#pragma unroll
            for (int i = 0; i < 16; ++i) diagonal.at[i][column] = round_tf32(x[i]);
        __syncwarp();
    }

    // d (16 x 16) += a b, with a in registers (two steps of k) and b a block, rounded to tf32 here or before.
    template <bool kRound>
    __device__ __forceinline__ void add_block_product(float (&d)[2][4], const unsigned (&a)[2][4],
                                                      const typename Plan::Block& b) {
        const auto operand = [](float x) { return kRound ? to_tf32(x) : __float_as_uint(x); };
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int k = 8 * step + 2 * t;
                add_product_tf32(d[n], a[step], operand(b.at[k][8 * n + g]), operand(b.at[k + 1][8 * n + g]));
            }
    }

    // The rest of (I + A)^-1, by rows of blocks: T_wj = -(T_ww A_wm) T_mj summed over j <= m < w. The first factor is this
    // warp's own; the second comes from the warps above, one after another.
    __device__ __forceinline__ void merge_blocks(float (&merged)[3][2][4]) {
        unsigned left[3][2][4], own[2][4];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const float2 upper = pair_at(&block(warp, warp).at[g][8 * step + 2 * t]);
            const float2 lower = pair_at(&block(warp, warp).at[g + 8][8 * step + 2 * t]);
            own[step][0] = __float_as_uint(-upper.x);
            own[step][1] = __float_as_uint(-lower.x);
            own[step][2] = __float_as_uint(-upper.y);
            own[step][3] = __float_as_uint(-lower.y);
        }
#pragma unroll
        for (int m = 0; m < 3; ++m) {
            if (m >= warp) continue;
            float product[2][4] = {};
            add_block_product<true>(product, own, block(warp, m));
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                left[m][step][0] = to_tf32(product[step][0]);
                left[m][step][1] = to_tf32(product[step][2]);
                left[m][step][2] = to_tf32(product[step][1]);
                left[m][step][3] = to_tf32(product[step][3]);
            }
        }
#pragma unroll
        for (int m = 0; m < 3; ++m) {
            // Who has its rows goes on to bring what comes next; with two helpers there is time anyway.
            if (warp <= m && kConfig.helper_groups == 1) {
                signal(row_meeting(m), kWarpgroup);
                continue;
            }
            meet(row_meeting(m), kWarpgroup);  // row m of the inverse is complete
            if (warp <= m) continue;
#pragma unroll
            for (int j = 0; j <= m; ++j) add_block_product<false>(merged[j], left[m], block(m, j));
            if (warp == m + 1)
#pragma unroll
                for (int j = 0; j <= m; ++j)
#pragma unroll
                    for (int n = 0; n < 2; ++n)
#pragma unroll
                        for (int half = 0; half < 2; ++half)
                            *reinterpret_cast<float2*>(&block(warp, j).at[g + 8 * half][8 * n + 2 * t]) = {
                                round_tf32(merged[j][n][2 * half]), round_tf32(merged[j][n][2 * half + 1])};
        }
    }

    __device__ __forceinline__ void store_inverse(float (&merged)[3][2][4], const float (&betas)[kChunk],
                                                  typename Plan::Matrices& matrices) {
        const unsigned to = pair_row(matrices.inverse);
        constexpr int kRest = sizeof(PrefillTile);  // from one part to the other
        float2 beta[8], diagonal[2][2];
#pragma unroll
        for (int n = 0; n < 8; ++n) beta[n] = pair_at(&betas[8 * n + 2 * t]);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                diagonal[n][half] = pair_at(&block(warp, warp).at[g + 8 * half][8 * n + 2 * t]);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float2 x =
                    n < 6 ? float2{merged[n / 2 % 3][n % 2][2 * half], merged[n / 2 % 3][n % 2][2 * half + 1]} : float2{};
                if (n / 2 == warp) x = diagonal[n % 2][half];
                x = {x.x * beta[n].x, x.y * beta[n].y};
                const unsigned rounded = pack<kConfig.io>(x.x, x.y);
                const float2 near = unpack<kConfig.io>(rounded);
                store_shared(row_piece(to, n) + half * 1024, rounded);
                store_shared(row_piece(to, n) + half * 1024 + kRest, pack<kConfig.io>(x.x - near.x, x.y - near.y));
            }
    }

    __device__ __forceinline__ void run() {
        constexpr int kAhead = kConfig.lookahead() * kConfig.helper_groups;
        Turn<kConfig.stages> turn, coming;
        ScalarStream gates(args.recurrence.gate, work, index * kChunk), betas(args.recurrence.beta, work, index * kChunk);
        if (warp == 1) ask(index, gates, betas);
#pragma unroll 1
        for (int chunk = 0; chunk < kAhead; ++chunk, coming.next())
            if (chunk % kConfig.helper_groups == index) bring(chunk, coming, gates, betas);
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk, turn.next(), coming.next()) {
            if (kConfig.helper_groups > 1 && chunk % kConfig.helper_groups != index) continue;
            find_place();
            auto& stage = shared.stages[turn.stage];
            auto& matrices = shared.matrices[chunk % 2];
            auto& scalars = scalars_of(chunk);
            barrier(shared.loaded[turn.stage]).wait(turn.parity);
            if (tokens_in(work, chunk) < kChunk) {
                clear_keys_from(stage, tokens_in(work, chunk));
                publish_shared();
                gather();
            }
            float products[32];
            start_token_products<kConfig>(products, stage.query, stage.key);
            share_factors(stage, scalars, shared.factors[turn.stage]);
            gather();
            products_wait<0>();
            pin(products);
            decay(products, scalars.of_query, scalars);
            barrier(shared.used[chunk % 2]).wait(chunk / 2 % 2 ^ 1);
            store_scores(products, matrices.scores);
            start_token_products<kConfig>(products, stage.key, stage.key);
            products_wait<0>();
            pin(products);
            decay(products, scalars.of_key, scalars);
            store_blocks(products);
            __syncwarp();
            invert_diagonal();
            float merged[3][2][4] = {};
            merge_blocks(merged);
            store_inverse(merged, scalars.beta, matrices);
            publish_shared();
            barrier(shared.ready[turn.stage]).arrive();
            __syncwarp();
            bring(chunk + kAhead, coming, gates, betas);
        }
    }
};

}  // namespace gdn_cuda::gdn
