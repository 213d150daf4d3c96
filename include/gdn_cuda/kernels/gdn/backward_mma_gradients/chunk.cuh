// A chunk of a key head: its value heads one after another. Matrices of tokens x tokens first, then blocks of 64 key columns.
//
// Keys and queries are used as they are in memory: inverse norms r are factors of rows and columns, and what is summed is r
// times the gradient of a normalised row, so that the gradient of the row itself is the sum less its part along the row.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_gradients/products.cuh>

namespace gdn_cuda::gdn {

template <BackwardGradientsConfig kConfig>
struct ChunkGradients : TileProducts<kConfig.io> {
    using Base = TileProducts<kConfig.io>;
    using Tile = BackwardGradientsPlan::Tile;
    using Base::clear, Base::for_each, Base::row, Base::column, Base::half, Base::pair_at;
    using Base::thread, Base::warp, Base::lane, Base::g, Base::t;
    static constexpr DType kIo = kConfig.io;
    using Io = Storage<kIo>;

    BackwardGradientsPlan& shared;
    const BackwardGradientsArgs& args;
    const GradientsWork& work = shared.work;

    TileSums query[kConfig.key_blocks], key[kConfig.key_blocks];  // r dq, r dk, summed over value heads

    __device__ __forceinline__ ChunkGradients(BackwardGradientsPlan& shared, const BackwardGradientsArgs& args)
        : shared(shared), args(args) {}

    // At the start of a phase: otherwise the addresses of all phases live in registers at once.
    __device__ __forceinline__ void refresh() { MmaLane::refresh<256>(shared.first_thread); }

    // ---- Memory

    __device__ __forceinline__ Io* rows_of(const Rows& rows, int head) const { return rows_of_chunk<Io>(rows, work, head); }
    // Vectors of a tile: this thread has one in every kRowsAtOnce rows.
    static constexpr int kRowsAtOnce = BackwardGradientsConfig::threads() / 8;
    // Zeros past `rows` and `columns`. `from`: the tile's first element.
    __device__ __forceinline__ void load(Tile& tile, const Io* from, i64 stride, int rows, int columns) const {
        const int row = static_cast<unsigned>(thread) / 8, vector = thread % 8;
        const bool has_column = 8 * vector < columns;
        const Io* at = from + row * stride + 8 * vector;
#pragma unroll
        for (int first = 0; first < kChunk; first += kRowsAtOnce) {
            const bool exists = has_column && first + row < rows;
            cp_async_16_zfill(row_vector(tile_row(tile.bytes, row), vector) + first * static_cast<int>(sizeof(Tile)) / kChunk,
                              exists ? at : from, exists);
            at += kRowsAtOnce * stride;
        }
    }
    __device__ __forceinline__ void wait_for_loads() const {
        cp_async_fence();
        cp_async_wait<0>();
        __syncthreads();
    }
    __device__ __forceinline__ i64 place_of(int head) const { return head * args.from.chunks + work.index; }
    __device__ __forceinline__ void load_values(int head, int slab) const {
        const int first = slab * kChunk, columns = args.dv - first;
        load(shared.values.output_gradient, rows_of(args.output_gradient, head) + first, args.output_gradient.token, work.count,
             columns);
        load(shared.values.value_gradient, rows_of(args.value_gradient, head) + first, args.value_gradient.token, work.count,
             columns);
#pragma unroll
        for (int part = 0; part < 2; ++part)
            if (part < parts())
                load(shared.values.error[part],
                     static_cast<const Io*>(args.from.errors) + (2 * place_of(head) + part) * kChunk * args.dv + first, args.dv,
                     work.count, columns);
    }
    __device__ __forceinline__ void load_keys(int block) const {
        const int first = block * kChunk, columns = args.dk - first;
        load(shared.columns.query, rows_of(args.query, work.key_head) + first, args.query.token, work.count, columns);
        load(shared.columns.key, rows_of(args.key, work.key_head) + first, args.key.token, work.count, columns);
    }
    __device__ __forceinline__ void load_states(int head, int slab, int block) const {
        const i64 first = (place_of(head) * args.dv + slab * kChunk) * args.dk + block * kChunk;
        const int rows = args.dv - slab * kChunk, columns = args.dk - block * kChunk;
        load(shared.columns.state, static_cast<const Io*>(args.from.states) + first, args.dk, rows, columns);
        load(shared.columns.state_gradient, static_cast<const Io*>(args.from.state_gradients) + first, args.dk, rows, columns);
    }
    // Parts of R: the rounding residual counts where T cancels.
    __device__ __forceinline__ int parts() const { return shared.scalars.cancels ? 2 : 1; }
    __device__ __forceinline__ int slabs() const { return (args.dv + kChunk - 1) / kChunk; }

    // ---- Tokens x tokens

    // dO R^T and dV R^T.
    __device__ __forceinline__ void multiply_values(TileSums& by_output, TileSums& by_value, int head) {
        clear(by_output);
        clear(by_value);
#pragma unroll 1
        for (int slab = 0; slab < slabs(); ++slab) {
            refresh();
            load_values(head, slab);
            wait_for_loads();
#pragma unroll 1
            for (int part = 0; part < parts(); ++part) {
                this->add_by_rows(by_output, shared.values.output_gradient, shared.values.error[part]);
                this->add_by_rows(by_value, shared.values.value_gradient, shared.values.error[part]);
            }
            if (slab + 1 < slabs()) __syncthreads();
        }
    }
    // q k^T and k k^T.
    __device__ __forceinline__ void multiply_keys(TileSums& by_query, TileSums& by_key) {
        clear(by_query);
        clear(by_key);
#pragma unroll 1
        for (int block = 0; block < kConfig.key_blocks; ++block) {
            refresh();
            load_keys(block);
            wait_for_loads();
            this->add_by_rows(by_query, shared.columns.query, shared.columns.key);
            this->add_by_rows(by_key, shared.columns.key, shared.columns.key);
            __syncthreads();
        }
    }
    // Element (row, column) of a tile.
    static __device__ __forceinline__ void store(Tile& tile, int row, int column, float x) {
        reinterpret_cast<Io*>(tile.bytes + row * 128 + ((column / 8 ^ row % 8) << 4))[column % 8] = from_float<Io>(x);
    }
    // dP and dA + dA^T with the norms of both sides, M, and the gradient of beta.
    __device__ __forceinline__ void form_scores(int head) {
        TileSums by_output, by_value, by_query, by_key;
        multiply_values(by_output, by_value, head);
        multiply_keys(by_query, by_key);
        refresh();
        const ChunkScalars& scalars = shared.scalars;
        for_each([&](int n, int i) {
            const int at = row(i), from = column(n, i);
            if (at == from) {
                shared.beta_gradient[at] = by_value[n][i] / scalars.beta[at];
                store(shared.by_keys, at, at, 0.f);
            }
            const float decay = at >= from ? exp2_fast(scalars.gate[at] - scalars.gate[from]) : 0.f;  // masked before exp2
            const float factor = decay * scalars.beta[from] * scalars.key_norm[from];
            const float score = at >= from ? args.scale * scalars.query_norm[at] * factor * by_output[n][i] : 0.f;
            const float keys = at > from ? -scalars.key_norm[at] * factor * by_value[n][i] : 0.f;
            shared.moments[at][from] = score * by_query[n][i] + keys * by_key[n][i];
            store(shared.by_scores[0], at, from, score);
            store(shared.by_scores[1], at, from, score - to_float(from_float<Io>(score)));
            if (at > from) {
                store(shared.by_keys, at, from, keys);
                store(shared.by_keys, from, at, keys);
            }
        });
        __syncthreads();
    }
    // Sum of M_ij over i >= t > j for each token t: prefix sums of rows, then sums of columns. Nothing is subtracted: these
    // sums may be far smaller than their terms.
    __device__ __forceinline__ void sum_moments() {
        constexpr int kPart = kChunk / 4;
        const int line = thread / 4, first = thread % 4 * kPart;
        float* const mine = shared.moments[line] + first;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kPart; ++i) {
            const float x = mine[i];
            mine[i] = sum;
            sum += x;
        }
        float before = 0.f;
#pragma unroll
        for (int part = 0; part < 3; ++part) {
            const float others = __shfl_sync(0xffffffffu, sum, lane / 4 * 4 + part);
            before += part < thread % 4 ? others : 0.f;
        }
#pragma unroll
        for (int i = 0; i < kPart; ++i) mine[i] += before;
        __syncthreads();
        sum = 0.f;
#pragma unroll
        for (int i = 0; i < kPart; ++i) sum += first + i >= line ? shared.moments[first + i][line] : 0.f;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (thread % 4 == 0) shared.within_chunk[line] = sum;
        __syncthreads();
    }

    // ---- Blocks of key columns

    // This thread's part of the sum of E * S over the tiles that are loaded.
    __device__ __forceinline__ float product_of_states() const {
        float sum = 0.f;
#pragma unroll
        for (int first = 0; first < kChunk; first += kRowsAtOnce) {
            const int at = 16 * (8 * first + thread);
            const uint4 x = load_shared(shared_address(shared.columns.state.bytes) + at),
                        y = load_shared(shared_address(shared.columns.state_gradient.bytes) + at);
            const unsigned left[] = {x.x, x.y, x.z, x.w}, right[] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const float2 a = unpack<kIo>(left[pair]), b = unpack<kIo>(right[pair]);
                sum = fmaf(a.x, b.x, fmaf(a.y, b.y, sum));
            }
        }
        return sum;
    }
    // Elements 8 n + 2 t and + 1 of this thread's row `half` (g or g + 8) of a tile.
    __device__ __forceinline__ float2 pair_of(const Tile& tile, int n, int half) const {
        return unpack<kIo>(load_shared_word(pair_at(tile, n, 2 * half)));
    }
    // to += sums, whose rows are multiplied by `factors`; dots: rows of `along` times what was added.
    __device__ __forceinline__ void add_rows(TileSums& to, float (&dots)[2], const TileSums& sums, const float (&factors)[2],
                                             const Tile& along) const {
#pragma unroll
        for (int which = 0; which < 2; ++which)
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float2 own = pair_of(along, n, which);
                const float x = factors[which] * sums[n][2 * which], y = factors[which] * sums[n][2 * which + 1];
                dots[which] = fmaf(own.x, x, fmaf(own.y, y, dots[which]));
                to[n][2 * which] += x;
                to[n][2 * which + 1] += y;
            }
    }
    // Adds what passes through the states to the gradients of queries and keys, and to s and u of this thread's two rows. All
    // of it is linear in the value columns, so one slab of them is added after the other. Returns this thread's part of <E, S>.
    __device__ __forceinline__ float add_through_states(TileSums& dq, TileSums& dk, float (&s)[2], float (&u)[2], int head,
                                                        int block) {
        float product = 0.f;
#pragma unroll 1
        for (int slab = 0; slab < slabs(); ++slab) {
            refresh();
            if (slabs() > 1) load_values(head, slab);
            load_states(head, slab, block);
            wait_for_loads();
            const ChunkScalars& scalars = shared.scalars;
            float output_factors[2], value_factors[2], error_factors[2];
#pragma unroll
            for (int which = 0; which < 2; ++which) {
                const int at = row(2 * which);
                const float before = exp2_fast(scalars.gate[at]),
                            after = exp2_fast(scalars.gate[kChunk - 1] - scalars.gate[at]);
                output_factors[which] = args.scale * before * scalars.query_norm[at];
                value_factors[which] = -before * scalars.key_norm[at];
                error_factors[which] = after * scalars.beta[at] * scalars.key_norm[at];
            }
            const auto& columns = shared.columns;
            TileSums sums;
            clear(sums);
            this->add(sums, shared.values.output_gradient, columns.state);
            add_rows(dq, s, sums, output_factors, columns.query);
            clear(sums);
            this->add(sums, shared.values.value_gradient, columns.state);
            add_rows(dk, s, sums, value_factors, columns.key);
            clear(sums);
#pragma unroll 1
            for (int part = 0; part < parts(); ++part) this->add(sums, shared.values.error[part], columns.state_gradient);
            add_rows(dk, u, sums, error_factors, columns.key);
            product += product_of_states();
            if (slab + 1 < slabs()) __syncthreads();
        }
        return product;
    }
    // Sums over the columns of each row, of this warp's half of a block.
    __device__ __forceinline__ void store_row_sums(const float (&first)[2], const float (&second)[2]) const {
#pragma unroll
        for (int which = 0; which < 2; ++which) {
            float a = first[which], b = second[which];
#pragma unroll
            for (int step = 1; step < 4; step *= 2) {
                a += __shfl_xor_sync(0xffffffffu, a, step);
                b += __shfl_xor_sync(0xffffffffu, b, step);
            }
            if (t == 0) {
                shared.row_sums[half()][0][row(2 * which)] = a;
                shared.row_sums[half()][1][row(2 * which)] = b;
            }
        }
    }
    __device__ __forceinline__ void add_columns(int head) {
        float s[2] = {}, u[2] = {}, product = 0.f;
#pragma unroll
        for (int block = 0; block < kConfig.key_blocks; ++block) {
            refresh();
            load_keys(block);
            product += add_through_states(query[block], key[block], s, u, head, block);
            refresh();
#pragma unroll
            for (const Tile& scores : shared.by_scores) {
                this->add(query[block], scores, shared.columns.key);
                this->add_transposed(key[block], scores, shared.columns.query);
            }
            this->add(key[block], shared.by_keys, shared.columns.key);
            __syncthreads();
        }
        store_row_sums(s, u);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) product += __shfl_xor_sync(0xffffffffu, product, step);
        if (lane == 0) shared.state_product[warp] = product;
        __syncthreads();
    }

    // ---- Scalars

    __device__ __forceinline__ void load_scalars(int head) {
        const auto* from = reinterpret_cast<const uint4*>(args.from.scalars + place_of(head));
        auto* to = reinterpret_cast<uint4*>(&shared.scalars);
        for (int i = thread; i < static_cast<int>(sizeof(ChunkScalars) / sizeof(uint4));
             i += BackwardGradientsConfig::threads())
            to[i] = from[i];
        __syncthreads();
    }
    // By one warp.
    __device__ __forceinline__ void store_gates(int head) {
        if (warp != 0) return;
        const auto sum_of = [&](int which, int token) {
            return shared.row_sums[0][which][token] + shared.row_sums[1][which][token];
        };
        float product = 0.f;
        for (const float each : shared.state_product) product += each;
        product *= exp2_fast(shared.scalars.gate[kChunk - 1]);
        const i64 first = first_scalar(args, work, head);
        for_each_gate_gradient(
            lane, product, [&](int token) { return sum_of(0, token); }, [&](int token) { return sum_of(1, token); },
            [&](int token, float gradient) {
                if (token >= work.count) return;
                const i64 at = first + static_cast<i64>(token) * args.scalars_token;
                args.gate_gradient[at] = gradient + shared.within_chunk[token];
                args.beta_gradient[at] = shared.beta_gradient[token];
            });
    }
    // The value gradients of tokens whose beta is 0.
    __device__ __forceinline__ void clear_value_gradients(int head) {
        const int vectors = args.dv / 8;
        for (int i = thread; i < work.count * vectors; i += BackwardGradientsConfig::threads())
            if (const int token = i / vectors; shared.scalars.beta[token] == least_beta(kIo))
                *reinterpret_cast<uint4*>(rows_of(args.value_gradient, head) + token * args.value_gradient.token +
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
            if (args.qk_norm)
                along = norms[at] * norms[at] * (shared.row_sums[0][which_sum][at] + shared.row_sums[1][which_sum][at]);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const int from = kChunk * block + column(n, 0);
                if (at >= work.count || from >= args.dk) continue;
                float2 pair{x[n][2 * which], x[n][2 * which + 1]};
                if (args.qk_norm) {
                    const float2 own = pair_of(rows, n, which);
                    pair.x = fmaf(-along, own.x, pair.x);
                    pair.y = fmaf(-along, own.y, pair.y);
                }
                *reinterpret_cast<unsigned*>(to + at * stride + from) = pack<kIo>(pair.x, pair.y);
            }
        }
    }
    __device__ __forceinline__ void store_keys_and_queries() {
        if (args.qk_norm) {
            float queries[2] = {}, keys[2] = {};
#pragma unroll
            for (int block = 0; block < kConfig.key_blocks; ++block) {
                refresh();
                load_keys(block);
                wait_for_loads();
                for_each([&](int n, int i) {
                    const float2 q = pair_of(shared.columns.query, n, i / 2), k = pair_of(shared.columns.key, n, i / 2);
                    queries[i / 2] = fmaf(i % 2 == 0 ? q.x : q.y, query[block][n][i], queries[i / 2]);
                    keys[i / 2] = fmaf(i % 2 == 0 ? k.x : k.y, key[block][n][i], keys[i / 2]);
                });
                __syncthreads();
            }
            store_row_sums(queries, keys);
            __syncthreads();
        }
#pragma unroll
        for (int block = 0; block < kConfig.key_blocks; ++block) {
            refresh();
            if (args.qk_norm) {
                load_keys(block);
                wait_for_loads();
            }
            store_rows(rows_of(args.query_gradient, work.key_head), args.query_gradient.token, query[block],
                       shared.columns.query, shared.scalars.query_norm, 0, block);
            store_rows(rows_of(args.key_gradient, work.key_head), args.key_gradient.token, key[block], shared.columns.key,
                       shared.scalars.key_norm, 1, block);
            if (args.qk_norm) __syncthreads();
        }
    }

    __device__ __forceinline__ void run() {
#pragma unroll
        for (int block = 0; block < kConfig.key_blocks; ++block) {
            clear(query[block]);
            clear(key[block]);
        }
#pragma unroll 1
        for (int i = 0; i < args.heads_per_key; ++i) {
            const int head = work.key_head * args.heads_per_key + i;
            load_scalars(head);
            form_scores(head);
            sum_moments();
            add_columns(head);
            store_gates(head);
            clear_value_gradients(head);
            __syncthreads();
        }
        store_keys_and_queries();
    }
};

}  // namespace gdn_cuda::gdn
