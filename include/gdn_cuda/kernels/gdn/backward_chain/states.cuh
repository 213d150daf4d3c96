// The chain forward in time: the states again, and what gradients need of the values,
//
//     X = V - exp(G) K S^T      V' = T X      R = V' / beta      S <- exp(G_C) S + (exp(G_C - G) V')^T K.
//
// With a gate for every channel the decays are in the keys (gdn/kda/training_record.cuh), and norms of keys in T:
//
//     X = V - r K_in S^T        r V' = (r T) X                   S <- S diag(g_64) + (r V')^T K_out.
//
// T, X, and V' in the update of S, are used in two 16-bit parts, as roundings add up over chunks where gates are slow; R where
// entries of T cancel. The warpgroup beside the chain stores R.
#pragma once

#include <gdn_cuda/kernels/chunked/outputs.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/loads.cuh>

namespace gdn_cuda::gdn {

template <BackwardChainConfig kConfig>
struct States {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    static constexpr DType kIo = kConfig.io;
    using Plan = StatesPlan<kConfig>;
    using Stage = PipelineStage<kBlock.stages>;

    Plan& shared;
    const BackwardChainArgs& args;
    const ChunkedWork& work = shared.work;

    // ---- Loads and stores, a warp each

    __device__ __forceinline__ void run_loads(int warp) const {
        if (warp == 1 && has_tail<kBlock>(work.tokens, work.tokens.chunks - 1))
            clear_tail<kConfig>(shared, work, work.tokens.chunks - 1);
        if (threadIdx.x % 32 > 0) return;
        if (warp == 0) load_chunks<kConfig>(shared, args, work);
        if (warp == 2) store_states<kConfig>(shared, args);
    }

    // By one thread.
    __device__ __forceinline__ void set_barriers() const {
        for (auto& word : shared.stage_full) barrier(word).init(2);
        for (auto& word : shared.stage_empty) barrier(word).init(2 * 4);  // the chain, and beside it
        for (auto* word : {&shared.values_full, &shared.values_empty}) barrier(*word).init(4);
        barrier(shared.tail_full).init(1);
    }

    // ---- Beside the chain: R

    __device__ __forceinline__ void run_beside() const {
        Lane lane;
        const int first = static_cast<int>(first_prepared(args, work));
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            const Stage current(chunk);
            const auto& factors = shared.factors[current.index];
            lane.find_lane();
            TokenFragment errors;
            TokenFactors inverse;
            barrier(shared.values_full).wait(chunk & 1);
            read_values_scale(inverse, factors, lane.t);
            for_each_handed(shared.values, lane.thread, [&](int i, const float4& x) {
                errors[i] = x.x, errors[i + 1] = x.y, errors[i + 2] = x.z, errors[i + 3] = x.w;
            });
            const bool two_part = cancels(factors);
            arrive_by_warp(lane, shared.values_empty);
            if (lane.lane == 0) barrier(shared.stage_empty[current.index]).arrive();
            for (float2& each : inverse) each = {__fdividef(1.f, each.x), __fdividef(1.f, each.y)};
            scale_tokens(errors, inverse);
            store_part(errors, lane, first + chunk, 0);
            if (two_part) [[unlikely]] {
                for_each_token_pair(errors, [](int, int, float& x, float& next) {
                    const float2 rounded = unpack<kIo>(pack<kIo>(x, next));
                    x -= rounded.x;
                    next -= rounded.y;
                });
                store_part(errors, lane, first + chunk, 1);
            }
        }
        if (lane.thread == 0) cute::tma_store_wait<0>();
    }
    // The values that are handed over are R times these.
    template <class Factors>
    __device__ __forceinline__ static void read_values_scale(TokenFactors& scale, const Factors& factors, int t) {
        read_factors(scale, factors.beta, t);
        if constexpr (kConfig.channels) {
            TokenFactors norms;
            read_factors(norms, factors.key_norm, t);
#pragma unroll
            for (int i = 0; i < 2 * kTokenSteps; ++i) scale[i] = {scale[i].x * norms[i].x, scale[i].y * norms[i].y};
        }
    }
    __device__ __forceinline__ void store_part(const TokenFragment& errors, const Lane& lane, int index, int which) const {
        if (lane.thread == 0) cute::tma_store_wait<0>();
        lane.warpgroup_sync();
        write_tokens_tile<kIo>(shared.output[0], errors, lane);
        cutlass::arch::fence_view_async_shared();
        lane.warpgroup_sync();
        if (lane.thread > 0 || !shared.stores) return;
        tma_store(args.output, {work.first_row, which, 0, index}, shared.output[0].bytes);
        cute::tma_store_arrive();
    }

    // ---- The chain

    // What a chunk needs first, read while products of the chunk before run.
    struct ReadAhead {
        TokenOperand values;
        TokenFactors key_scale;
        StateDecay<kConfig> decay;
    };
    template <class Owner>
    __device__ __forceinline__ void read_ahead(const Owner& own, ReadAhead& next, int chunk) const {
        const Stage at(chunk);
        barrier(shared.stage_full[at.index]).wait(at.parity);
        load_operand(next.values, shared.stages[at.index].value[0], own);
        const auto& factors = shared.factors[at.index];
        if constexpr (kConfig.channels)
            read_factors(next.key_scale, factors.key_norm, own.t);
        else
            read_factors(next.key_scale, factors.key_scale, own.t);
        next.decay.read(factors, own.t);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chain(Owner& own) const {
        const int chunks = work.tokens.chunks;
        ReadAhead ahead;
        read_ahead(own, ahead, 0);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) run_chunk(own, ahead, chunk, chunk + 1 < chunks);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chunk(Owner& own, ReadAhead& ahead, int chunk, bool more) const {
        const Stage current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        own.find_lane();

        TokenOperand operand, residual;
        TokenFragment d, values;
        TokenFactors scales;
        start_product<kIo>(d, own.rounded_state, stage.keys_in());
        ahead.decay.scale(own);
        stage_state(own, chunk);
        wait_for_product(d);
        for_each_token_pair(d, [&](int step, int i, float& s, float& next) {  // X
            const float2 scale = ahead.key_scale[2 * step + i / 2], v = unpack<kIo>(ahead.values[step][i]);
            s = v.x - scale.x * s;
            next = v.y - scale.y * next;
        });
        pack_tokens<kIo>(operand, d);
        start_product<kIo>(values, operand, &stage.inverse);
        start_product<kIo>(values, operand, &stage.inverse_residual, true);
        pack_tokens_residual<kIo>(residual, d, operand);
        start_product<kIo>(values, residual, &stage.inverse, true);
        if constexpr (!kConfig.channels) read_factors(scales, factors.update_scale, own.t);
        wait_for_product(values);
        if constexpr (kConfig.channels)
            pack_tokens<kIo>(operand, values);
        else
            pack_scaled_tokens<kIo>(operand, values, scales);
        start_product_mn<kIo>(own.state, operand, stage.keys_out());
        if constexpr (kConfig.channels)
            pack_tokens_residual<kIo>(residual, values, operand);
        else
            pack_scaled_tokens_residual<kIo>(residual, values, scales, operand);
        start_product_mn<kIo>(own.state, residual, stage.keys_out());
        barrier(shared.values_empty).wait(chunk & 1 ^ 1);
        hand_over(shared.values, values, own.thread);
        arrive_by_warp(own, shared.values_full);
        if (more) read_ahead(own, ahead, chunk + 1);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }
};

}  // namespace gdn_cuda::gdn
