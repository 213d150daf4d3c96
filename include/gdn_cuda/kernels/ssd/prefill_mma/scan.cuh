// What a warp of ssd/prefill_mma does: its 16 channels of a row tile's state and outputs, and its part of the loads and of M.
#pragma once

#include <gdn_cuda/kernels/common/named_barrier.cuh>
#include <gdn_cuda/kernels/common/opaque.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/ssd/by_token.cuh>
#include <gdn_cuda/kernels/ssd/prefill_mma/plan.cuh>
#include <gdn_cuda/kernels/ssd/state_rows.cuh>

namespace gdn_cuda::ssd {

using gdn::MmaLane;
using gdn::TokenOperands;

// `thread` and `warp` in the row tile.
struct MmaTileLane : MmaLane {
    int group;  // the row tile

    // Recomputed for every chunk: hoisted out of the loop, dozens of addresses would spill. Unsigned, so that divisions are
    // shifts.
    __device__ __forceinline__ void refresh() {
        const unsigned i = opaque(threadIdx.x), whole_warps = __shfl_sync(0xffffffffu, i / 32, 0);  // warp-uniform
        group = static_cast<int>(whole_warps / 4);
        warp = static_cast<int>(whole_warps % 4);
        thread = static_cast<int>(i % kTileThreads);
        lane = static_cast<int>(i % 32);
        g = static_cast<int>(i % 32 / 4);
        t = static_cast<int>(i % 4);
    }
    __device__ __forceinline__ int tile() const { return group; }
    __device__ __forceinline__ void tile_sync() const {
        if (group == 0)
            named_barrier_sync<1>(kTileThreads);
        else
            named_barrier_sync<2>(kTileThreads);
    }
    __device__ __forceinline__ bool any_of_tile(bool found) const {
        return group == 0 ? named_barrier_or(kTileThreads, 1, found) : named_barrier_or(kTileThreads, 2, found);
    }
};

template <SsdMmaConfig kConfig>
struct MmaScan : StateRows<kConfig.states, MmaTileLane> {
    using Plan = SsdMmaPlan<kConfig>;
    using Stage = typename Plan::Stage;
    using Base = StateRows<kConfig.states, MmaTileLane>;
    using Base::args, Base::work, Base::state, Base::group, Base::thread, Base::warp, Base::lane, Base::g, Base::t,
        Base::pair_of;
    using Sums = MmaLane::TokenSums;
    using Io = Storage<kConfig.io>;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTokenSteps = kChunk / 16, kStateSteps = kConfig.states / 16;
    // A warp multiplies 16 rows of B by some of the blocks of 16 rows of C from its own on; row tiles take turns.
    static constexpr int kScoreBlocks = kTokenSteps / kConfig.row_tiles;
    using Products = float[2 * kScoreBlocks][4];
    static constexpr int kStateTiles = kConfig.state_tiles();  // of B, as by_token.cuh reads them
    static constexpr bool kGated = kConfig.gated;

    Plan& shared;
    const SsdMmaArgs& rows;

    __device__ __forceinline__ MmaScan(Plan& shared, const SsdMmaArgs& rows)
        : Base(rows.scan, shared.work), shared(shared), rows(rows) {
        this->refresh();
    }
    // Warps of a row tile that does not exist take part in loads and scores.
    __device__ __forceinline__ bool has_tile() const { return group < work.tiles; }
    __device__ __forceinline__ int scores() const { return work.row_tiles[group].scores; }
    __device__ __forceinline__ int score_block(int i) const { return warp + group + kConfig.row_tiles * i; }
    // 16 x 8 elements of the state.
    __device__ __forceinline__ float (&state_at(int n))[4] {
        constexpr int kOfPart = Base::kPartColumns / 8;
        return reinterpret_cast<float(&)[4]>(state[n / kOfPart][n % kOfPart * 4]);
    }

    // ---- Loads; zeros past the end of the sequence and of the rows

    // A chunk's rows of B or C. By all threads.
    __device__ __forceinline__ void load_rows(MmaTile* tiles, const Rows& from, const ChunkTokens& tokens) const {
        constexpr int kVectors = 8, kRows = kConfig.threads() / kVectors;
        const int index = group * kTileThreads + thread, row = index / kVectors, vector = index % kVectors;
        const unsigned to = row_vector(tile_row(tiles, row), vector);
        const Io* const first = static_cast<const Io*>(from.data) + work.batch * from.batch +
                                (tokens.first + row) * from.token + work.group * from.head + 8 * vector;
#pragma unroll
        for (int i = 0; i < kChunk / kRows; ++i)
#pragma unroll
            for (int tile = 0; tile < kConfig.state_tiles(); ++tile) {
                const bool exists = row + i * kRows < tokens.count && tile * kMmaTileElements + 8 * vector < args.states;
                const void* const at = first + i * kRows * from.token + tile * kMmaTileElements;
                cp_async_16_zfill(to + tile * Base::kTileBytes + i * kRows * 128, exists ? at : from.data, exists);
            }
    }
    // What all warps read.
    __device__ __forceinline__ void load_stage(int step) const {
        if (step >= work.steps) return;
        const int chunk = work.chunk_at(step);
        Stage& stage = shared.stages[step % kConfig.stages];
        const ChunkTokens tokens = tokens_of(args, work, chunk);
        load_rows(stage.B, work.pass == 0 ? rows.B : rows.C, tokens);
        if (work.outputs_at(step)) load_rows(stage.C, rows.C, tokens);
        static_assert(sizeof(ChunkSteps) == 32 * 16);
        if (warp == 0 && group < work.heads()) {
            const ChunkSteps& from = args.steps[(work.chunks_before + chunk) * args.heads + work.row_tiles[group].head];
            cp_async_16_zfill(shared_address(&stage.steps[group]) + 16 * lane, reinterpret_cast<const uint4*>(&from) + lane,
                              true);
        }
    }
    // The warp's channels of x and z, and outputs: a lane has every 16th token from token lane / 2 on, eight channels of it.
    __device__ __forceinline__ int vector_token() const { return lane / 2; }
    __device__ __forceinline__ int vector_row() const { return this->first_row() + 16 * warp + lane % 2 * 8; }
    __device__ __forceinline__ unsigned vector_of_tile(const MmaTile& tile) const {
        return row_vector(tile_row(tile.bytes, vector_token()), 2 * warp + lane % 2);
    }
    // How many tokens the lane's vectors reach, from its first one on.
    __device__ __forceinline__ int vector_count(const ChunkTokens& tokens) const {
        return vector_row() < args.channels ? tokens.count - vector_token() : 0;
    }
    __device__ __forceinline__ void load_channels(const MmaTile& tile, const Rows& from, const ChunkTokens& tokens) const {
        const unsigned to = vector_of_tile(tile);
        const int count = vector_count(tokens);
        const Io* const first = static_cast<const Io*>(from.data) + work.batch * from.batch +
                                (tokens.first + vector_token()) * from.token + this->head() * from.head + vector_row();
#pragma unroll
        for (int i = 0; i < kTokenSteps; ++i) {
            const bool exists = 16 * i < count;
            const void* const at = first + 16 * i * from.token;
            cp_async_16_zfill(to + i * Base::kRowBlockBytes, exists ? at : from.data, exists);
        }
    }
    __device__ __forceinline__ const MmaTile& x_tile() const { return shared.x[group]; }
    __device__ __forceinline__ const MmaTile& z_tile() const { return shared.x[kConfig.row_tiles + group]; }
    __device__ __forceinline__ void load_own(int step) const {
        if (step >= work.steps || !has_tile()) return;
        const ChunkTokens tokens = tokens_of(args, work, work.chunk_at(step));
        load_channels(x_tile(), work.pass == 0 ? rows.x : rows.out_gradient, tokens);
        if constexpr (kConfig.gated)
            if (work.outputs_at(step)) load_channels(z_tile(), rows.z, tokens);
    }

    // ---- What a chunk does

    // Each head's, by the row tile of its number.
    __device__ __forceinline__ void store_factors(const Stage& stage) const {
        if (group >= work.heads()) return;
        const ChunkSteps& steps = stage.steps[group];
        auto& factors = shared.factors[group];
        const int token = thread % kChunk;
        const float gate = steps.gate[token];
        if (warp < kChunk / 32) {
            const float before = exp2_fast(gate), own = gate - (token == 0 ? 0.f : steps.gate[token - 1]);
            const bool resets = __any_sync(0xffffffffu, before == 0.f), at_once = __any_sync(0xffffffffu, is_reset(own));
            factors.before[token] = before;
            if (lane == 0) factors.resets[warp] = resets, factors.at_once[warp] = at_once;
        } else {
            factors.after[token] =
                work.pass == 0 ? steps.delta[token] * exp2_fast(steps.gate[kChunk - 1] - gate) : exp2_fast(gate);
        }
    }
    static __device__ __forceinline__ void clear(auto& sums) {
#pragma unroll
        for (auto& four : sums)
#pragma unroll
            for (float& x : four) x = 0.f;
    }
    // B C^T, of the warp's blocks.
    __device__ __forceinline__ void multiply_rows(Products& products, const Stage& stage) const {
        clear(products);
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            unsigned left[4];
            ldmatrix_x4(left, this->straight_vector(stage.B, step) + warp * Base::kRowBlockBytes);
#pragma unroll
            for (int i = 0; i < kScoreBlocks; ++i) {  // blocks that do not exist too: branches would cost more
                unsigned right[4];
                ldmatrix_x4(right,
                            this->crossed_vector(stage.C, step) + min(score_block(i), kTokenSteps - 1) * Base::kRowBlockBytes);
                mma_m16n8k16<kIo>(products[2 * i], left, right[0], right[1]);
                mma_m16n8k16<kIo>(products[2 * i + 1], left, right[2], right[3]);
            }
        }
    }
    // y = S C^T with S rounded.
    __device__ __forceinline__ void apply_state(Sums& y, const Stage& stage) {
        clear(y);
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) {
            unsigned left[4];
            as_left<kIo>(left, state_at(2 * step), state_at(2 * step + 1));
            this->template add_token_products<kIo>(y, left, stage.C, step);
        }
    }
    // M^T = B C^T exp(G_i - G_j) δ_j for i >= j, of each head. Where a decay is 0, M is too, which stops infinities and NaN.
    __device__ __forceinline__ void store_scores(const Products& products, const Stage& stage) const {
#pragma unroll 1
        for (int head = 0; head < work.heads(); ++head) {
            const ChunkSteps& steps = stage.steps[head];
            const int first = 16 * warp + g;
            const float gate[2] = {steps.gate[first], steps.gate[first + 8]},
                        delta[2] = {steps.delta[first], steps.delta[first + 8]};
            const unsigned to = shared_address(shared.scores[head]) + 4 * t;
#pragma unroll
            for (int i = 0; i < kScoreBlocks; ++i) {
                const int block = score_block(i);
                if (block >= kTokenSteps) break;
                const unsigned to_block = to + Plan::block_of(block, warp) * static_cast<int>(sizeof(typename Plan::Block));
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const float2 later = pair_of(steps.gate, 2 * block + n);
                    const int column = 16 * block + 8 * n + 2 * t;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const int row = first + 8 * half;
                        const auto score = [&](float product, float gate_of_column, bool is_after) {
                            const float decay = exp2_fast(gate_of_column - gate[half]);
                            return is_after && decay != 0.f ? product * (decay * delta[half]) : 0.f;
                        };
                        const float* const two = &products[2 * i + n][2 * half];
                        const float low = score(two[0], later.x, column >= row),
                                    high = score(two[1], later.y, column + 1 >= row);
                        store_shared(to_block + MmaLane::block_vector(g + 8 * half, n), pack<kIo>(low, high));
                    }
                }
            }
        }
    }
    __device__ __forceinline__ void load_operand(TokenOperands& x, const MmaTile& tile) const {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) load_operand(x[step], tile, step);
    }
    __device__ __forceinline__ void load_operand(unsigned (&x)[4], const MmaTile& tile, int step) const {
        ldmatrix_x4_trans(x, this->crossed_vector(tile.bytes, warp) + step * Base::kRowBlockBytes);
    }
    // S <- exp(G_C) S + (δ exp(G_C - G) x)^T B. After a decay of 0 the product replaces S, whose infinities and NaN end so.
    __device__ __forceinline__ void update_state(const Stage& stage, float& log_decay) {
        const float log = stage.steps[scores()].gate[kChunk - 1], decay = exp2_fast(log);
        const auto& after = shared.factors[scores()].after;
        log_decay += log;
        this->decay_state(decay);
        if (decay == 0.f) this->clear_state();  // if the other branch multiplied, the compiler would copy the state
        constexpr int kUnrolled = kConfig.states > 128 ? 1 : kTokenSteps;  // else 256 states spill
#pragma unroll kUnrolled
        for (int step = 0; step < kTokenSteps; ++step) {
            unsigned left[4];
            load_operand(left, x_tile(), step);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 own = unpack<kIo>(left[i]), factor = pair_of(after, 2 * step + i / 2);
                left[i] = pack<kIo>(own.x * factor.x, own.y * factor.y);
            }
#pragma unroll
            for (int k = 0; k < kStateSteps; ++k) {
                unsigned right[4];
                ldmatrix_x4_trans(right, this->straight_vector(stage.B, k) + step * Base::kRowBlockBytes);
                mma_m16n8k16<kIo>(state_at(2 * k), left, right[0], right[1]);
                mma_m16n8k16<kIo>(state_at(2 * k + 1), left, right[2], right[3]);
            }
        }
    }
    // A factor of 0 stops infinities and NaN of the state.
    __device__ __forceinline__ void clear_after_resets(Sums& y, const float (&before)[kChunk]) const {
#pragma unroll
        for (int n = 0; n < 2 * kTokenSteps; ++n) {
            const float2 factor = pair_of(before, n);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if ((i % 2 == 0 ? factor.x : factor.y) == 0.f) y[n][i] = 0.f;
        }
    }
    // y <- exp(G) y + D x + M x.
    __device__ __forceinline__ void add_tokens(Sums& y, const TokenOperands& x, const float (&D)[2]) const {
        const auto& [before, _, resets, at_once] = shared.factors[scores()];
        if (resets[0] || resets[1]) clear_after_resets(y, before);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 own = unpack<kIo>(x[step][i]), factor = pair_of(before, 2 * step + i / 2);
                float* const two = &y[2 * step + i / 2][i % 2 * 2];
                two[0] = fmaf(D[i % 2], own.x, factor.x * two[0]);
                two[1] = fmaf(D[i % 2], own.y, factor.y * two[1]);
            }
        const auto& transposed = shared.scores[scores()];
        const int vector = MmaLane::block_vector(VectorOfLane::straight(lane));
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
            for (int block = step; block < kTokenSteps; ++block) {
                unsigned right[4];
                ldmatrix_x4_trans(right, shared_address(&transposed[Plan::block_of(block, step)]) + vector);
                mma_m16n8k16<kIo>(y[2 * block], x[step], right[0], right[1]);
                mma_m16n8k16<kIo>(y[2 * block + 1], x[step], right[2], right[3]);
            }
    }
    // Times silu(z), in place of x.
    __device__ __forceinline__ void stage_outputs(const Sums& y) const {
        const unsigned first = row_vector(tile_row(x_tile().bytes, g), 2 * warp) + 4 * t;
        __syncwarp();  // every lane has read x
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) {
            [[maybe_unused]] unsigned z[4];
            if constexpr (kConfig.gated) load_operand(z, z_tile(), step);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int n = 2 * step + i / 2, half = i % 2;
                float2 out = {y[n][2 * half], y[n][2 * half + 1]};
                if constexpr (kConfig.gated) {
                    const float2 gate = unpack<kIo>(z[i]);
                    out = {out.x * silu(gate.x), out.y * silu(gate.y)};
                }
                this->stage_pair(first, n, half, pack<kIo>(out.x, out.y));
            }
        }
        __syncwarp();
    }
    __device__ __forceinline__ void store_outputs_and_load(int step) const {
        const ChunkTokens tokens = tokens_of(args, work, work.chunk_at(step));
        Io* const to = static_cast<Io*>(args.out_data) + work.batch * args.out_batch +
                       (tokens.first + vector_token()) * args.out_token + this->head() * args.out_head + vector_row();
        this->store_staged(vector_of_tile(x_tile()), to, args.out_token, vector_count(tokens), [&] { load_own(step + 1); });
    }

    // Takes a chunk token by token, if products would make NaN of it.
    template <bool kOutputs>
    __device__ __forceinline__ bool run_by_token(const Stage& stage, const float (&D)[2], float& log_decay) {
        const auto& at_once = shared.factors[scores()].at_once;
        if (!at_once[0] && !at_once[1]) [[likely]]
            return false;
        const ChunkTiles<MmaTile> chunk{shared.x[group], &shared.x[kConfig.gated ? kConfig.row_tiles + group : 0], stage.B,
                                        stage.C, stage.steps[scores()]};
        if (!is_not_finite(*this, chunk)) return false;
        run_tokens<kOutputs>(*this, chunk, D);
        __syncwarp();
        log_decay += stage.steps[scores()].gate[kChunk - 1];
        return true;
    }
    template <bool kOutputs>
    __device__ __forceinline__ void run_step(int step, const float (&D)[2], float& log_decay) {
        constexpr bool kLoadsEarly = kConfig.stages > 1;
        this->refresh();
        const Stage& stage = shared.stages[step % kConfig.stages];
        cp_async_wait<1>();  // all but x and z
        __syncthreads();     // B and C have arrived, and no warp reads the last chunk's any more
        if constexpr (kLoadsEarly) {
            load_stage(step + 1);
            cp_async_fence();
        }
        store_factors(stage);
        Sums y;
        if constexpr (kOutputs) {
            Products products;
            multiply_rows(products, stage);
            store_scores(products, stage);
            this->refresh();
            apply_state(y, stage);
        }
        cp_async_wait<kLoadsEarly ? 1 : 0>();  // x and z have arrived
        __syncthreads();                       // M and the factors are complete
        this->refresh();
        const bool by_token = has_tile() && run_by_token<kOutputs>(stage, D, log_decay);
        if (has_tile() && !by_token) update_state(stage, log_decay);
        if constexpr (!kLoadsEarly) {
            __syncthreads();  // no warp reads B any more
            load_stage(step + 1);
            cp_async_fence();
        }
        this->refresh();
        if (has_tile()) {
            if constexpr (kOutputs) {
                if (!by_token) {
                    TokenOperands x;
                    load_operand(x, x_tile());
                    add_tokens(y, x, D);
                    this->refresh();
                    stage_outputs(y);
                    this->refresh();
                }
                store_outputs_and_load(step);
            } else {
                __syncwarp();  // every lane has read x
                load_own(step + 1);
            }
        }
        cp_async_fence();
    }
    // The steps without outputs. Returns the sum of δA in log2.
    __device__ __forceinline__ float run_states() {
        const float unused[2] = {};
        float log_decay = 0.f;
#pragma unroll 1
        for (int step = 0; step < work.first_own; ++step) run_step<false>(step, unused, log_decay);
        return log_decay;
    }
    // The states before chunks, in the order of the steps, and the last one.
    __device__ __forceinline__ void store_chunks() {
        const float no_D[2] = {};
        float unused = 0.f;
#pragma unroll 1
        for (int step = work.first_own; step < work.steps; ++step) {
            this->refresh();
            if (has_tile()) this->template store_chunk_state<kIo>(step);
            run_step<false>(step, no_D, unused);
        }
        if (has_tile()) this->store_state();
    }
    __device__ __forceinline__ void run() {
        load_stage(0);
        cp_async_fence();
        load_own(0);
        cp_async_fence();
        this->clear_state();
        const bool stores_chunks = args.states_only && this->pass().chunk_states != nullptr,
                   is_summary = args.states_only && !stores_chunks;
        if (work.first_own > 0 || is_summary) {
            const bool summarizes = is_summary && work.is_last();
            float before = 1.f;
            if (summarizes && has_tile()) before = this->load_state();
            const float log_decay = run_states();
            if (has_tile()) {
                if (summarizes)
                    this->store_summary(before, log_decay);
                else
                    this->store_segment(log_decay);
            }
            if (is_summary) return;
        }
        float D[2] = {}, unused = 0.f;
        if (has_tile()) {
            this->load_state();
            this->signal_initial_state_read();
            this->store_before(work.first_own);
            D[0] = this->D_of(this->my_row()), D[1] = this->D_of(this->my_row() + 8);
        }
        if constexpr (!kConfig.gated)
            if (stores_chunks) return store_chunks();
#pragma unroll 1
        for (int step = work.first_own; step < work.steps; ++step) {
            run_step<true>(step, D, unused);
            if (has_tile()) this->store_reported(step);
        }
        if (has_tile()) this->store_state();
    }
};

}  // namespace gdn_cuda::ssd
