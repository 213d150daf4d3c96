// A chunk of a key head: its value heads one after another. Matrices of tokens x tokens first, then blocks of 64 key columns,
// and for each its states, slab after slab of 64 value columns. Loads for the next step are issued before a step's last
// products.
//
// Keys and queries are used as they are in memory: inverse norms r are factors of rows and columns, and what is summed is r
// times the gradient of a normalised row, so that the gradient of the row itself is the sum less its part along the row.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/scores.cuh>

namespace gdn_cuda::gdn {

template <BackwardGradientsConfig kConfig>
struct ChunkGradients : ChunkScores<kConfig> {
    using Base = ChunkScores<kConfig>;
    using Base::shared, Base::args, Base::work, Base::kIo, Base::kBlocks, Base::clear, Base::row, Base::column,
        Base::column_block, Base::rows_of, Base::end_group, Base::slabs;
    using Base::thread, Base::warp, Base::lane, Base::t;
    using typename Base::Tile, typename Base::TileSums, typename Base::TilePair, typename Base::Io;

    TileSums query[kBlocks], key[kBlocks];  // r dq, r dk, summed over value heads

    using Base::Base;

    // ---- Blocks of key columns

    // This warp's part of <E, S>, of the tiles that are there.
    __device__ __forceinline__ void add_product_of_states(bool begins) const {
        float sum = 0.f;
        const uint4 x = load_shared(shared_address(shared.states[0].bytes) + 16 * thread),
                    y = load_shared(shared_address(shared.states[1].bytes) + 16 * thread);
        const unsigned left[] = {x.x, x.y, x.z, x.w}, right[] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            const float2 a = unpack<kIo>(left[pair]), b = unpack<kIo>(right[pair]);
            sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) add_to(shared.state_product[warp], sum, begins);
    }
    static __device__ __forceinline__ void add_to(float& sum, float x, bool begins) { sum = begins ? x : sum + x; }
    // to += sums, whose rows are multiplied by `factors`; dots: rows of `along` times what was added.
    __device__ __forceinline__ void add_rows(TileSums& to, float (&dots)[2], const TileSums& sums, const float (&factors)[2],
                                             const Tile& along) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            float dot = 0.f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float2 own = this->pair_at(along, n, which);
                const float x = sums[n][2 * which], y = sums[n][2 * which + 1];
                dot = fmaf(own.x, x, fmaf(own.y, y, dot));
                to[n][2 * which] = fmaf(factors[which], x, to[n][2 * which]);
                to[n][2 * which + 1] = fmaf(factors[which], y, to[n][2 * which + 1]);
            }
            dots[which] = fmaf(factors[which], dot, dots[which]);
        }
    }
    // Sums over this warp's columns of a block, of each row.
    __device__ __forceinline__ void add_row_sums(const float (&first)[2], const float (&second)[2], bool begins) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            float a = first[which], b = second[which];
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
                a += __shfl_xor_sync(0xffffffffu, a, step);
                b += __shfl_xor_sync(0xffffffffu, b, step);
            }
            if (t > 0) continue;
            auto& sums = shared.row_sums[column_block()];
            add_to(sums[0][row(2 * which)], a, begins);
            add_to(sums[1][row(2 * which)], b, begins);
        }
    }
    // Adds what passes through the states to the gradients of queries and keys, to s and u, and to <E, S>. All of it is linear
    // in the value columns, so one slab of them is added after the other. begins: nothing has been added for this value head.
    __device__ __forceinline__ void add_through_states(TileSums& dq, TileSums& dk, bool begins) {
        this->refresh();
        float s[2] = {}, u[2] = {};
        const ChunkScalars& scalars = this->scalars();
        float output_factors[2], value_factors[2], error_factors[2];
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int at = row(2 * which);
            const float before = exp2_fast(scalars.gate[at]), after = exp2_fast(scalars.gate[kChunk - 1] - scalars.gate[at]);
            output_factors[which] = args.scale * before * scalars.query_norm[at];
            value_factors[which] = -before * scalars.key_norm[at];
            error_factors[which] = after * scalars.beta[at] * scalars.key_norm[at];
        }
        const Tile &state = shared.states[0], &gradient = shared.states[1], &queries = shared.tokens[0],
                   &keys = shared.tokens[1];
        TileSums sums;
        clear(sums);
        this->add(sums, shared.values.output_gradient, state);
        add_rows(dq, s, sums, output_factors, queries);
        clear(sums);
        this->add(sums, shared.values.value_gradient, state);
        add_rows(dk, s, sums, value_factors, keys);
        clear(sums);
#pragma unroll 1
        for (int part = 0; part < this->parts(); ++part) this->add(sums, shared.values.error[part], gradient);
        add_rows(dk, u, sums, error_factors, keys);
        add_row_sums(s, u, begins);
        add_product_of_states(begins);
    }
    // What passes from token to token, in two halves, between which loads are under way.
    __device__ __forceinline__ void add_through_keys(TileSums& dq, TileSums& dk) const {
        for (const Tile& scores : shared.by_scores) this->template add<true>(dq, scores, shared.tokens[1]);
        this->template add<true>(dk, shared.by_keys, shared.tokens[1]);
        this->add_transposed(dk, shared.by_keys, shared.tokens[1]);
    }
    __device__ __forceinline__ void add_through_queries(TileSums& dk) const {
        for (const Tile& scores : shared.by_scores) this->add_transposed(dk, scores, shared.tokens[0]);
    }
    __device__ __forceinline__ float row_sum(int which, int token) const {
        float sum = 0.f;
#pragma unroll
        for (const auto& columns : shared.row_sums) sum += columns[which][token];
        return sum;
    }
    // Blocks from the last to the first, and slabs in alternating order, so that neighbouring steps share values. Loads of
    // the next value head's first values are issued at the end.
    __device__ __forceinline__ void add_columns() {
        const int last = slabs() - 1;
#pragma unroll
        for (int block = kBlocks - 1; block >= 0; --block) {
            const bool downwards = (kBlocks - 1 - block) % 2 == 0;
#pragma unroll 1
            for (int step = 0; step <= last; ++step) {
                this->wait_for_groups();
                add_through_states(query[block], key[block], block + 1 == kBlocks && step == 0);
                __syncthreads();
                this->refresh();
                const int slab = downwards ? last - step : step;
                if (step < last) {
                    const int next = downwards ? slab - 1 : slab + 1;
                    this->load_values(shared.head, next);
                    this->load_states(next, block);
                } else if (block > 0) {
                    this->load_states(slab, block - 1);
                } else if (this->more()) {
                    this->load_scalars(shared.head + 1);
                    this->load_values(shared.head + 1, 0);
                }
                end_group();
                this->refresh();
                if (step == 0) add_through_keys(query[block], key[block]);
                if (step == last) add_through_queries(key[block]);
            }
            if (block > 0) {
                __syncthreads();
                this->refresh();
                this->load_tokens(shared.tokens, block - 1);
                end_group();
            }
        }
        __syncthreads();
    }

    // ---- Scalars

    // By one warp.
    __device__ __forceinline__ void store_gates() {
        if (warp != 0) return;
        float product = 0.f;
        for (const float each : shared.state_product) product += each;
        product *= exp2_fast(this->scalars().gate[kChunk - 1]);
        const i64 first = first_scalar(args, work, shared.head);
        for_each_gate_gradient(
            lane, product, [&](int token) { return row_sum(0, token); }, [&](int token) { return row_sum(1, token); },
            [&](int token, float gradient) {
                if (token >= work.count) return;
                const i64 at = first + static_cast<i64>(token) * args.scalars_token;
                args.gate_gradient[at] = gradient + this->sum_within_chunk(token);
                args.beta_gradient[at] = shared.beta_gradient[token];
            });
    }
    // The value gradients of tokens whose beta is 0, which have been read.
    __device__ __forceinline__ void clear_value_gradients() {
        const int vectors = args.dv / 8;
        for (int i = thread; i < work.count * vectors; i += BackwardGradientsConfig::threads())
            if (const int token = i / vectors; this->scalars().beta[token] == least_beta(kIo))
                *reinterpret_cast<uint4*>(rows_of(args.value_gradient, shared.head) + token * args.value_gradient.token +
                                          i % vectors * 8) = {};
    }

    // ---- Results

    // Stores x - n^2 row (row . x), where n is the row's inverse norm, or x.
    __device__ __forceinline__ void store_rows(Io* to, i64 stride, const TileSums& x, const Tile& rows,
                                               const float (&norms)[kChunk], int which_sum, int block) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            const int at = row(2 * which);
            float along = 0.f;
            if (args.qk_norm) along = norms[at] * norms[at] * row_sum(which_sum, at);
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const int from = kChunk * block + column(n, 0);
                if (at >= work.count || from >= args.dk) continue;
                float2 pair{x[n][2 * which], x[n][2 * which + 1]};
                if (args.qk_norm) {
                    const float2 own = this->pair_at(rows, n, which);
                    pair.x = fmaf(-along, own.x, pair.x);
                    pair.y = fmaf(-along, own.y, pair.y);
                }
                *reinterpret_cast<unsigned*>(to + at * stride + from) = pack<kIo>(pair.x, pair.y);
            }
        }
    }
    // With norms, queries and keys of two blocks are there at a time.
    __device__ __forceinline__ TilePair& tokens_again(int block) const {
        return block % 2 == 0 ? shared.tokens : shared.states;
    }
    __device__ __forceinline__ void load_again(int block) {
        this->refresh();
        this->load_tokens(tokens_again(block), block);
        end_group();
        this->wait_for_groups();
    }
    __device__ __forceinline__ void sum_along_rows() {
        float queries[2] = {}, keys[2] = {};
        __syncthreads();  // no row sums are read any more
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            if (block > 1) __syncthreads();
            if (block > 0) load_again(block);  // the first block's are still there
            const TilePair& tokens = tokens_again(block);
#pragma unroll
            for (int which = 0; which < 2; ++which)
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const float2 q = this->pair_at(tokens[0], n, which), k = this->pair_at(tokens[1], n, which);
                    const float *const dq = &query[block][n][2 * which], *const dk = &key[block][n][2 * which];
                    queries[which] = fmaf(q.x, dq[0], fmaf(q.y, dq[1], queries[which]));
                    keys[which] = fmaf(k.x, dk[0], fmaf(k.y, dk[1], keys[which]));
                }
        }
        add_row_sums(queries, keys, true);
        __syncthreads();
    }
    __device__ __forceinline__ void store_keys_and_queries(const ChunkScalars& scalars) {
        if (args.qk_norm) sum_along_rows();
#pragma unroll
        for (int block = kBlocks - 1; block >= 0; --block) {
            if (args.qk_norm && block + 2 < kBlocks) {
                __syncthreads();
                load_again(block);
            }
            const TilePair& tokens = tokens_again(block);
            store_rows(rows_of(args.query_gradient, work.key_head), args.query_gradient.token, query[block], tokens[0],
                       scalars.query_norm, 0, block);
            store_rows(rows_of(args.key_gradient, work.key_head), args.key_gradient.token, key[block], tokens[1],
                       scalars.key_norm, 1, block);
        }
    }

    __device__ __forceinline__ void run() {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
            clear(query[block]);
            clear(key[block]);
        }
        if (thread == 0) {
            shared.head = work.key_head * args.heads_per_key;
            this->find_sources(shared.head);
        }
        __syncthreads();
        this->load_scalars(shared.head);
        this->load_values(shared.head, 0);
        end_group();
#pragma unroll 1
        while (true) {
            if (thread == 0 && this->more()) this->find_sources(shared.head + 1);
            this->form_scores();
            add_columns();
            store_gates();
            clear_value_gradients();
            if (!this->more()) break;
            __syncthreads();
            if (thread == 0) ++shared.head;
            __syncthreads();
        }
        store_keys_and_queries(this->scalars());
    }
};

}  // namespace gdn_cuda::gdn
