// The chain backward in time: E, the gradient of the state, from the last chunk to the first,
//
//     dV' = P^T dO + exp(G_C - G) K E^T      dV = T^T dV'      E <- exp(G_C) E + (scale exp(G) dO)^T Q - (exp(G) dV)^T K.
//
// P^T dO and dO^T Q do not need E: the warpgroup beside the chain computes them a chunk ahead, as a warp is held up until its
// wgmmas have entered the tensor cores' queue. T and P are read in the other orientation than forward. A reset scales E by 0. T
// and dV' are used in two 16-bit parts; P, and dV in the update of E, where entries of T cancel.
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/handover.cuh>

namespace gdn_cuda::gdn {

// Rounded to a left operand: x times factors.
template <DType kIo>
__device__ __forceinline__ void scale_operand(TokenOperand& scaled, const TokenOperand& x, const TokenFactors& factors) {
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<kIo>(x[step][i]), factor = factors[2 * step + i / 2];
            scaled[step][i] = pack<kIo>(pair.x * factor.x, pair.y * factor.y);
        }
}

template <BackwardChainConfig kConfig>
struct StateGradients {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    static constexpr DType kIo = kConfig.io;
    static constexpr int kTile = sizeof(SwizzledTile);
    using Plan = StateGradientsPlan<kConfig>;
    using Stage = PipelineStage<kBlock.stages>;
    using AheadStage = PipelineStage<Plan::kAhead>;

    Plan& shared;
    const BackwardChainArgs& args;
    const ChunkedWork& work = shared.work;

    // By one thread.
    __device__ __forceinline__ void set_barriers() const {
        for (auto& word : shared.stage_full) barrier(word).init(2);
        for (auto& word : shared.ahead_full) barrier(word).init(2);
        for (auto* words : {shared.stage_empty, shared.ahead_empty})
            for (int i = 0; i < 2; ++i) barrier(words[i]).init(4);
        for (auto* word : {&shared.products_full, &shared.products_empty, &shared.output_full}) barrier(*word).init(4);
        barrier(shared.output_empty).init(1);
        barrier(shared.tail_full).init(2);
    }

    // ---- Loads and stores, a warp each

    __device__ __forceinline__ void run_loads(int warp) const {
        if (warp == 2 && has_tail<kBlock>(work.tokens, 0)) clear_tail();
        if (threadIdx.x % 32 > 0) return;
        switch (warp) {
            case 0:
                return load_chain();
            case 1:
                return load_ahead();
            case 2:
                return store_states<kConfig>(shared, args);
            case 3:
                return store_outputs();
        }
    }
    // The barrier for the rows of a chunk's tokens: those past the end are cleared before others see them.
    __device__ __forceinline__ Barrier& rows_full(int chunk, unsigned long long& full) const {
        return barrier(has_tail<kBlock>(work.tokens, chunk) ? shared.tail_full : full);
    }
    __device__ __forceinline__ TileAt tile_at(int chunk, int element, int head) const {
        return {element, head, first_token<kBlock>(work.tokens, chunk), batch_of(args, work)};
    }
    __device__ __forceinline__ void load_chain() const {
        for_each_prepared<kBlock>(args, work, [&](int chunk, const PreparedChunk& from) {
            const Stage current(chunk);
            auto& stage = shared.stages[current.index];
            Barrier &full = barrier(shared.stage_full[current.index]), &rows = rows_full(chunk, shared.stage_full[current.index]);
            barrier(shared.stage_empty[current.index]).wait(current.parity ^ 1);
            rows.arrive_and_expect_tx(kBlock.key_tiles() * kTile);
            load_tiles(stage.key, args.key, tile_at(chunk, 0, work.key_head), rows);
            full.arrive_and_expect_tx(2 * kTile + static_cast<int>(sizeof(from.scalars)));
            load_bulk(shared.factors[current.index], from.scalars, full);
            load_bulk(stage.inverse, from.inverse, full);
            load_bulk(stage.inverse_residual, from.inverse_residual, full);
        });
    }
    __device__ __forceinline__ void load_ahead() const {
        for_each_prepared<kBlock>(args, work, [&](int chunk, const PreparedChunk& from) {
            const AheadStage current(chunk);
            auto& stage = shared.ahead[current.index];
            Barrier &full = barrier(shared.ahead_full[current.index]), &rows = rows_full(chunk, shared.ahead_full[current.index]);
            barrier(shared.ahead_empty[current.index]).wait(current.parity ^ 1);
            rows.arrive_and_expect_tx((1 + kBlock.key_tiles()) * kTile);
            load_tiles(stage.query, args.query, tile_at(chunk, 0, work.key_head), rows);
            tma_load(stage.value.bytes, args.value, tile_at(chunk, work.first_value, work.head), rows);
            full.arrive_and_expect_tx(kTile + static_cast<int>(sizeof(from.scalars)));
            load_bulk(shared.ahead_factors[current.index], from.scalars, full);
            load_bulk(stage.scores, from.scores, full);
        });
    }
    // The chain begins with the chunk in which the sequence ends.
    __device__ __forceinline__ void clear_tail() const {
        const int count = tokens_in<kBlock>(work.tokens, 0);
        barrier(shared.tail_full).wait(0);
        clear_rows(shared.stages[0].key, count);
        clear_rows(shared.ahead[0].query, count);
        clear_rows(reinterpret_cast<SwizzledTile(&)[1]>(shared.ahead[0].value), count);
        cutlass::arch::fence_view_async_shared();
        __syncwarp();
        if (threadIdx.x % 32 > 0) return;
        barrier(shared.stage_full[0]).arrive();
        barrier(shared.ahead_full[0]).arrive();
    }
    // TMA would overwrite the next sequence's rows.
    __device__ __forceinline__ bool without_tma(int chunk) const {
        return is_packed(args) && has_tail<kBlock>(work.tokens, chunk);
    }
    __device__ __forceinline__ void store_outputs() const {
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            barrier(shared.output_full).wait(chunk & 1);
            if (!without_tma(chunk)) {
                cutlass::arch::fence_view_async_shared();
                start_tile_store<kBlock>(args, work, chunk, 0, shared.output[0]);
                cute::tma_store_wait<0>();
            }
            barrier(shared.output_empty).arrive();
        }
    }

    // ---- Beside the chain

    __device__ __forceinline__ void run_ahead() const {
        Lane lane;
        lane.find_lane();
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const AheadStage current(chunk);
            auto& stage = shared.ahead[current.index];
            const auto& factors = shared.ahead_factors[current.index];
            lane.find_lane();
            barrier(shared.ahead_full[current.index]).wait(current.parity);

            TokenOperand output_gradient, scaled;
            TokenFragment values;
            TokenFactors scales;
            float updates[kBlock.head_k / 2];
            load_operand(output_gradient, stage.value, lane);
            start_product_mn<kIo>(values, output_gradient, &stage.scores, false);
            read_factors(scales, factors.query_scale, lane.t);
            scale_operand<kIo>(scaled, output_gradient, scales);
            start_product_mn<kIo>(updates, scaled, stage.query, false);
            const bool two_part = cancels(factors);
            wait_for_product(updates);
            warpgroup_fence_operand(values);
            if (two_part) [[unlikely]]
                add_scores_residual(values, output_gradient, lane, chunk);
            arrive_by_warp(lane, shared.ahead_empty[current.index]);
            barrier(shared.products_empty).wait(chunk & 1 ^ 1);
            hand_over(shared.values, values, lane.thread);
            hand_over(shared.updates, updates, lane.thread);
            arrive_by_warp(lane, shared.products_full);
        }
    }
    // values += P_residual^T dO; the residual replaces P.
    __device__ __forceinline__ void add_scores_residual(TokenFragment& values, const TokenOperand& output_gradient,
                                                        const Lane& lane, int chunk) const {
        const Stage at(chunk);
        auto& stage = shared.ahead[AheadStage(chunk).index];
        const auto& factors = shared.ahead_factors[AheadStage(chunk).index];
        TokenFragment products;
        barrier(shared.stage_full[at.index]).wait(at.parity);  // the chain holds the stage until it has the products
        start_token_products<kBlock>(products, stage.query, shared.stages[at.index].key);
        wait_for_product(products);
        decay(products, lane, factors.query_row, factors.column);
        lane.warpgroup_sync();  // all have read P
        store_scores<kIo, true>(products, lane, stage.scores, args.call.scale);
        cutlass::arch::fence_view_async_shared();
        lane.warpgroup_sync();
        start_product_mn<kIo>(values, output_gradient, &stage.scores);
        wait_for_product(values);
    }

    // ---- The chain

    // What a chunk needs before its own products, read while those of the chunk before run.
    struct ReadAhead {
        TokenFragment values;  // P^T dO
        TokenFactors update_scale;
    };
    template <class Owner>
    __device__ __forceinline__ void read_ahead(const Owner& own, ReadAhead& next, int chunk) const {
        const Stage at(chunk);
        barrier(shared.stage_full[at.index]).wait(at.parity);
        read_factors(next.update_scale, shared.factors[at.index].update_scale, own.t);
        barrier(shared.products_full).wait(chunk & 1);
        for_each_handed(shared.values, own.thread, [&](int i, const float4& x) {
            next.values[i] = x.x, next.values[i + 1] = x.y, next.values[i + 2] = x.z, next.values[i + 3] = x.w;
        });
    }
    template <class Owner>
    __device__ __forceinline__ void run_chain(Owner& own) const {
        ReadAhead ahead;
        read_ahead(own, ahead, 0);
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) run_chunk(own, ahead, chunk);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chunk(Owner& own, ReadAhead& ahead, int chunk) const {
        const Stage current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        own.find_lane();

        TokenOperand operand, residual;
        TokenFragment d, values;
        TokenFactors scales;
        start_product<kIo>(d, own.rounded_state, stage.key);
        stage_state(own, chunk);
        const float decay = factors.decay;
        const bool two_part = cancels(factors);
        for_each_handed(shared.updates, own.thread, [&](int i, const float4& x) {
            own.state[i] = fmaf(own.state[i], decay, x.x);
            own.state[i + 1] = fmaf(own.state[i + 1], decay, x.y);
            own.state[i + 2] = fmaf(own.state[i + 2], decay, x.z);
            own.state[i + 3] = fmaf(own.state[i + 3], decay, x.w);
        });
        arrive_by_warp(own, shared.products_empty);
        wait_for_product(d);
        for_each_token_pair(d, [&](int step, int i, float& x, float& next) {  // dV'
            const float2 scale = ahead.update_scale[2 * step + i / 2];
            x = fmaf(x, scale.x, ahead.values[8 * step + 2 * i]);
            next = fmaf(next, scale.y, ahead.values[8 * step + 2 * i + 1]);
        });
        pack_tokens<kIo>(operand, d);
        start_product_mn<kIo>(values, operand, &stage.inverse, false);
        start_product_mn<kIo>(values, operand, &stage.inverse_residual);
        pack_tokens_residual<kIo>(residual, d, operand);
        start_product_mn<kIo>(values, residual, &stage.inverse);
        read_factors(scales, factors.key_scale, own.t);
        for (float2& scale : scales) scale = {-scale.x, -scale.y};
        wait_for_product(values);
        if (two_part) [[unlikely]]
            add_values_residual_to_state(own, values, scales, stage.key);
        pack_scaled_tokens<kIo>(operand, values, scales);
        start_product_mn<kIo>(own.state, operand, stage.key);
        barrier(shared.output_empty).wait(chunk & 1 ^ 1);
        write_output_tile(own, values);
        if (without_tma(chunk)) [[unlikely]] {
            own.warpgroup_sync();
            store_output_without_tma(own, chunk);
        }
        arrive_by_warp(own, shared.output_full);
        if (chunk + 1 < work.tokens.chunks) read_ahead(own, ahead, chunk + 1);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }
};

}  // namespace gdn_cuda::gdn
