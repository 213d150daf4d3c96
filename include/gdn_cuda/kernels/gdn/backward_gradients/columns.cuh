// The columns role: a warpgroup with 64 columns of the gradients of queries and keys, which it keeps in registers over the
// value heads of a key head.
#pragma once

#include <gdn_cuda/kernels/common/stmatrix.cuh>
#include <gdn_cuda/kernels/gdn/backward_gradients/consumer.cuh>

namespace gdn_cuda::gdn {

template <HopperGradientsConfig kConfig>
struct GradientsColumnsRole : GradientsConsumer<kConfig> {
    using Base = GradientsConsumer<kConfig>;
    using Base::shared, Base::args, Base::heads, Base::slabs, Base::group, Base::warp, Base::lane, Base::thread, Base::g,
        Base::t, Base::row, Base::kIo, Base::kKeyTiles;
    using typename Base::Plan, typename Base::Stage, typename Base::Io;
    using Columns = float[32];
    using Tokens = typename Plan::Tokens;

    using Base::Base;

    __device__ __forceinline__ int tile() const { return group - HopperGradientsConfig::kFirstColumnsGroup; }

    // Two elements of this thread in a tile of tokens x columns: in row(half), columns 8 n + 2 t and + 1.
    __device__ __forceinline__ float2 own_pair(const SwizzledTile& tile, int n, int half) const {
        return unpack<kIo>(load_shared_word(row_vector(tile_row(tile.bytes, row(half)), n) + 4 * t));
    }
    // Products whose rows are multiplied by `factors` and added to a gradient, and their part along the rows of x.
    struct RowTerm {
        const Columns& products;
        float factors[2];
        float (&along)[2];
    };
    template <int kTerms>
    __device__ __forceinline__ void add_rows(Columns& to, const SwizzledTile& x, const RowTerm (&terms)[kTerms]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float dots[kTerms] = {};
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float2 own = own_pair(x, n, half);
                const int at = 4 * n + 2 * half;
#pragma unroll
                for (int i = 0; i < kTerms; ++i) {
                    const float left = terms[i].products[at], right = terms[i].products[at + 1],
                                factor = terms[i].factors[half];
                    dots[i] = fmaf(own.x, left, fmaf(own.y, right, dots[i]));
                    to[at] = fmaf(factor, left, to[at]);
                    to[at + 1] = fmaf(factor, right, to[at + 1]);
                }
            }
#pragma unroll
            for (int i = 0; i < kTerms; ++i) terms[i].along[half] = fmaf(terms[i].factors[half], dots[i], terms[i].along[half]);
        }
    }
    // This thread's part of the sum of E * S.
    static __device__ __forceinline__ float product_of(const SwizzledTile& state, const SwizzledTile& gradient, int thread) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = 16 * (thread + i * kWarpgroup);
            const uint4 x = load_shared(shared_address(state.bytes) + at), y = load_shared(shared_address(gradient.bytes) + at);
            const unsigned left[] = {x.x, x.y, x.z, x.w}, right[] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const float2 a = unpack<kIo>(left[pair]), b = unpack<kIo>(right[pair]);
                sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
            }
        }
        return sum;
    }

    // Adds what passes through the states, which is linear in value columns: slab after slab.
    __device__ __forceinline__ void add_through_states(Columns& query, Columns& key, const Tokens& tokens, float (&s)[2],
                                                       float (&u)[2], float& product) {
        const ChunkScalars& scalars = shared.scalars[Stage(heads).index];
#pragma unroll 1
        for (int slab_of_head = 0; slab_of_head < this->slabs_of_head(); ++slab_of_head, ++slabs) {
            this->find_lane();
            const Stage stage(slabs);
            const auto& slab = shared.slabs[stage.index];
            const SwizzledTile &state = slab.state[tile()], &gradient = slab.state_gradient[tile()];
            barrier(shared.slab_full[stage.index]).wait(stage.parity);
            Columns by_output, by_value;
            start_tile_product<TileProduct::straight, kIo>(by_output, slab.output_gradient, state, false);
            start_tile_product<TileProduct::straight, kIo>(by_value, slab.value_gradient, state, false);
            product += product_of(state, gradient, thread);
            const float gate[2] = {scalars.gate[row(0)], scalars.gate[row(1)]},
                        before[2] = {exp2_fast(gate[0]), exp2_fast(gate[1])},
                        norm[2] = {scalars.key_norm[row(0)], scalars.key_norm[row(1)]};
            wait_for_product<1>(by_output);
            add_rows(query, tokens.query[tile()],
                     {RowTerm{by_output,
                              {args.call.scale * before[0] * scalars.query_norm[row(0)],
                               args.call.scale * before[1] * scalars.query_norm[row(1)]},
                              s}});
            Columns& by_error = by_output;
            start_tile_product<TileProduct::straight, kIo>(by_error, slab.error, gradient, false);
            if (this->two_part()) [[unlikely]]
                start_tile_product<TileProduct::straight, kIo>(by_error, slab.error_residual, gradient);
            const float last = scalars.gate[kChunk - 1], after[2] = {exp2_fast(last - gate[0]) * scalars.beta[row(0)],
                                                                     exp2_fast(last - gate[1]) * scalars.beta[row(1)]};
            wait_for_product(by_value);
            warpgroup_fence_operand(by_error);
            this->arrive(shared.slab_empty[stage.index]);
            add_rows(key, tokens.key[tile()],
                     {RowTerm{by_value, {-before[0] * norm[0], -before[1] * norm[1]}, s},
                      RowTerm{by_error, {after[0] * norm[0], after[1] * norm[1]}, u}});
        }
    }
    // Adds what passes from token to token of the chunk.
    __device__ __forceinline__ void add_through_tokens(Columns& query, Columns& key, const Tokens& tokens) {
        const SwizzledTile &queries = tokens.query[tile()], &keys = tokens.key[tile()];
        barrier(shared.scores_full).wait(heads & 1);
        warpgroup_fence_operand(query);
        warpgroup_fence_operand(key);
        start_tile_product<TileProduct::straight, kIo>(query, shared.scores, keys);
        start_tile_product<TileProduct::transposed, kIo>(key, shared.scores, queries);
        start_tile_product<TileProduct::straight, kIo>(key, shared.keys, keys);
        start_tile_product<TileProduct::transposed, kIo>(key, shared.keys, keys);
        if (this->two_part()) [[unlikely]] {
            start_tile_product<TileProduct::straight, kIo>(query, shared.scores_residual, keys);
            start_tile_product<TileProduct::transposed, kIo>(key, shared.scores_residual, queries);
        }
        wait_for_product(query);
        warpgroup_fence_operand(key);
        this->arrive(shared.scores_empty);
    }
    // Sums over this warpgroup's columns, for the gates.
    __device__ __forceinline__ void store_sums(float (&s)[2], float (&u)[2], float product) const {
        auto& sums = shared.sums[Stage(heads).index];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            add_columns(s[half]);
            add_columns(u[half]);
            if (t == 0) {
                sums.s[tile()][row(half)] = s[half];
                sums.u[tile()][row(half)] = u[half];
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffffu, product, step);
        if (lane == 0) sums.state_product[4 * tile() + warp] = product;
        this->arrive(shared.sums_full[Stage(heads).index]);
    }
    static __device__ __forceinline__ void add_columns(float& x) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    }

    // ---- Results

    // norms: inverse norms of this thread's rows. Subtracts from each row its part along x, times norm^2: what was summed is
    // norm times the gradient of a normalised row.
    __device__ __forceinline__ void through_norms(Columns& query, Columns& key, const Tokens& tokens,
                                                  const float (&query_norms)[2], const float (&key_norms)[2]) const {
        const SwizzledTile &queries = tokens.query[tile()], &keys = tokens.key[tile()];
        float along[2][2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float2 q = own_pair(queries, n, half), k = own_pair(keys, n, half);
                const int i = 4 * n + 2 * half;
                along[0][half] = fmaf(q.x, query[i], fmaf(q.y, query[i + 1], along[0][half]));
                along[1][half] = fmaf(k.x, key[i], fmaf(k.y, key[i + 1], along[1][half]));
            }
            add_columns(along[0][half]);
            add_columns(along[1][half]);
            if (kKeyTiles > 1 && t == 0) {
                shared.norm_sums[0][tile()][row(half)] = along[0][half];
                shared.norm_sums[1][tile()][row(half)] = along[1][half];
            }
        }
        if constexpr (kKeyTiles > 1) {
            NamedBarrier::sync(kKeyTiles * kWarpgroup, kColumnsBarrier);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int which = 0; which < 2; ++which)
                    along[which][half] = shared.norm_sums[which][0][row(half)] + shared.norm_sums[which][1][row(half)];
            NamedBarrier::sync(kKeyTiles * kWarpgroup, kColumnsBarrier);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float by_query = -query_norms[half] * query_norms[half] * along[0][half],
                        by_key = -key_norms[half] * key_norms[half] * along[1][half];
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                const float2 q = own_pair(queries, n, half), k = own_pair(keys, n, half);
                const int i = 4 * n + 2 * half;
                query[i] = fmaf(by_query, q.x, query[i]);
                query[i + 1] = fmaf(by_query, q.y, query[i + 1]);
                key[i] = fmaf(by_key, k.x, key[i]);
                key[i + 1] = fmaf(by_key, k.y, key[i + 1]);
            }
        }
    }
    // Rounds a gradient into the tile of what it is the gradient of, and stores it from there.
    __device__ __forceinline__ void store(const Rows& rows, const GradientsWork& work, const Columns& x,
                                          SwizzledTile& staged) const {
        const unsigned to = tile_row(staged.bytes, 16 * warp + lane % 16);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n += 2)
            stmatrix_x4(row_vector(to, n + lane / 16), pack<kIo>(x[4 * n], x[4 * n + 1]), pack<kIo>(x[4 * n + 2], x[4 * n + 3]),
                        pack<kIo>(x[4 * n + 4], x[4 * n + 5]), pack<kIo>(x[4 * n + 6], x[4 * n + 7]));
        __syncwarp();
        const int column = tile() * kTileElements + lane % 8 * 8;
        Io* const first = rows_of_chunk<Io>(rows, work, work.key_head) + column;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = 16 * warp + 4 * i + lane / 8;
            if (token < work.count && column < args.call.dk)
                *reinterpret_cast<uint4*>(first + token * rows.token) =
                    load_shared(row_vector(tile_row(staged.bytes, token), lane % 8));
        }
    }

    __device__ __forceinline__ void run() {
        this->for_each_item([&](const GradientsWork& work, Tokens& tokens) {
            Columns query, key;
            clear_fragment(query);
            clear_fragment(key);
            float query_norms[2], key_norms[2];
#pragma unroll 1
            for (int i = 0; i < args.call.heads_per_key; ++i, ++heads) {
                this->find_lane();
                float s[2] = {}, u[2] = {}, product = 0.f;
                add_through_states(query, key, tokens, s, u, product);
                add_through_tokens(query, key, tokens);
                const ChunkScalars& scalars = shared.scalars[Stage(heads).index];
#pragma unroll
                for (int half = 0; half < 2; ++half) {  // the same for all heads
                    query_norms[half] = scalars.query_norm[row(half)];
                    key_norms[half] = scalars.key_norm[row(half)];
                }
                store_sums(s, u, product);
            }
            if (args.call.qk_norm) through_norms(query, key, tokens, query_norms, key_norms);
            this->warpgroup_sync();  // no warp reads queries and keys any more
            store(args.call.query_gradient, work, query, tokens.query[tile()]);
            store(args.call.key_gradient, work, key, tokens.key[tile()]);
            cutlass::arch::fence_view_async_shared();
        });
    }
};

}  // namespace gdn_cuda::gdn
