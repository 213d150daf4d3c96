// The chain backward in time: E, the gradient of the state, from the last chunk to the first,
//
//     dV' = P^T dO + exp(G_C - G) K E^T      dV = T^T dV'      E <- exp(G_C) E + (scale exp(G) dO)^T Q - (exp(G) dV)^T K.
//
// P^T dO and dO^T Q do not need E: they run while K E^T is rounded. T and P are read in the other orientation than forward. A
// reset scales E by 0. T and dV' are used in two 16-bit parts; P, and dV in the update of E, where entries of T cancel.
#pragma once

#include <gdn_cuda/kernels/chunked/two_part.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/loads.cuh>

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

// All but what the chain does with a chunk.
template <BackwardChainConfig kConfig>
struct StateGradientRoles {
    static constexpr ChunkedConfig kBlock = kConfig.block();
    static constexpr DType kIo = kConfig.io;
    using Plan = StateGradientsPlan<kConfig>;
    using Stage = PipelineStage<kBlock.stages>;

    Plan& shared;
    const BackwardChainArgs& args;
    const ChunkedWork& work = shared.work;

    // By one thread.
    __device__ __forceinline__ void set_barriers() const {
        for (auto& word : shared.stage_full) barrier(word).init(2);
        for (auto& word : shared.stage_empty) barrier(word).init(4);
        barrier(shared.output_full).init(4);
        barrier(shared.output_empty).init(1);
        barrier(shared.tail_full).init(1);
    }

    // ---- Loads and stores, a warp each

    __device__ __forceinline__ void run_loads(int warp) const {
        if (warp == 1 && has_tail<kBlock>(work.tokens, 0)) clear_tail<kConfig>(shared, work, 0);
        if (threadIdx.x % 32 > 0) return;
        if (warp == 0) load_chunks<kConfig>(shared, args, work);
        if (warp == 2) store_states<kConfig>(shared, args);
        if (warp == 3) store_outputs();
    }
    // TMA would overwrite the next sequence's rows.
    __device__ __forceinline__ bool without_tma(int chunk) const {
        return is_packed(args) && has_tail<kBlock>(work.tokens, chunk);
    }
    __device__ __forceinline__ void store_outputs() const {
#pragma unroll 1
        for (int chunk = 0; chunk < work.tokens.chunks; ++chunk) {
            barrier(shared.output_full).wait(chunk & 1);
            if (shared.stores && !without_tma(chunk)) {
                cutlass::arch::fence_view_async_shared();
                start_tile_store<kBlock>(args, work, chunk, 0, shared.output[0]);
                cute::tma_store_wait<0>();
            }
            barrier(shared.output_empty).arrive();
        }
    }

    __device__ __forceinline__ void run_beside() const {}

    // ---- The chain

    // chain: has ReadAhead, read_ahead and run_chunk.
    template <class Chain, class Owner>
    __device__ __forceinline__ void run_chunks(const Chain& chain, Owner& own) const {
        const int chunks = work.tokens.chunks;
        const bool tail_without_tma = without_tma(0);
        typename Chain::ReadAhead ahead;
        chain.read_ahead(own, ahead, 0);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk)
            chain.run_chunk(own, ahead, chunk, chunk + 1 < chunks, chunk == 0 && tail_without_tma);
    }
    // Hands dV over.
    template <class Owner>
    __device__ __forceinline__ void put_values(const Owner& own, const TokenFragment& values, int chunk,
                                               bool without_tma) const {
        barrier(shared.output_empty).wait(chunk & 1 ^ 1);
        write_output_tile(own, values);
        if (without_tma) [[unlikely]] {
            own.warpgroup_sync();
            store_output_without_tma(own, chunk);
        }
        arrive_by_warp(own, shared.output_full);
    }
};

template <BackwardChainConfig kConfig>
struct StateGradients : StateGradientRoles<kConfig> {
    using Base = StateGradientRoles<kConfig>;
    using Base::kIo, Base::shared;
    using typename Base::Stage;

    // What a chunk needs first, read while products of the chunk before run: a load from shared memory that was issued after
    // wgmmas took 340 cycles.
    struct ReadAhead {
        TokenOperand output_gradient, scaled;  // by scale exp(G)
        TokenFactors update_scale;
        StateDecay<kConfig> decay;
        bool two_part;
    };
    template <class Owner>
    __device__ __forceinline__ void read_ahead(const Owner& own, ReadAhead& next, int chunk) const {
        const Stage at(chunk);
        const auto& factors = shared.factors[at.index];
        barrier(shared.stage_full[at.index]).wait(at.parity);
        load_operand(next.output_gradient, shared.stages[at.index].value[0], own);
        read_factors(next.update_scale, factors.query_scale, own.t);
        scale_operand<kIo>(next.scaled, next.output_gradient, next.update_scale);
        read_factors(next.update_scale, factors.update_scale, own.t);
        next.decay.read(factors, own.t);
        next.two_part = cancels(factors);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chain(Owner& own) const {
        this->run_chunks(*this, own);
    }
    template <class Owner>
    __device__ __forceinline__ void run_chunk(Owner& own, ReadAhead& ahead, int chunk, bool more, bool without_tma) const {
        const Stage current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        own.find_lane();

        TokenOperand operand, residual;
        TokenFragment d, values;
        TokenFactors scales;
        const bool two_part = ahead.two_part;
        if (two_part) [[unlikely]] {
            barrier(shared.output_empty).wait(chunk & 1 ^ 1);
            start_product_mn<kIo>(values, ahead.output_gradient, &form_scores_residual(own, stage, factors), false);
            wait_for_product(values);
            own.warpgroup_sync();  // the residual is in the outputs' tile
        }
        start_product<kIo>(d, own.rounded_state, stage.key);
        start_product_mn<kIo>(values, ahead.output_gradient, &stage.scores, two_part);
        ahead.decay.scale(own);
        start_product_mn<kIo>(own.state, ahead.scaled, stage.query);
        stage_state(own, chunk);
        wait_for_product<1>(d);
        warpgroup_fence_operand(values);
        for_each_token_pair(d, [&](int step, int i, float& x, float& next) {  // dV'
            const float2 scale = ahead.update_scale[2 * step + i / 2];
            x = fmaf(x, scale.x, values[8 * step + 2 * i]);
            next = fmaf(next, scale.y, values[8 * step + 2 * i + 1]);
        });
        pack_tokens<kIo>(operand, d);
        start_product_mn<kIo>(values, operand, &stage.inverse, false);
        start_product_mn<kIo>(values, operand, &stage.inverse_residual);
        pack_tokens_residual<kIo>(residual, d, operand);
        start_product_mn<kIo>(values, residual, &stage.inverse);
        read_factors(scales, factors.key_scale, own.t);
        for (float2& scale : scales) scale = {-scale.x, -scale.y};
        wait_for_product(values);
        warpgroup_fence_operand(own.state);
        if (two_part) [[unlikely]]
            add_values_residual_to_state(own, values, scales, stage.key);
        pack_scaled_tokens<kIo>(operand, values, scales);
        start_product_mn<kIo>(own.state, operand, stage.key);
        this->put_values(own, values, chunk, without_tma);
        if (more) read_ahead(own, ahead, chunk + 1);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }
};

}  // namespace gdn_cuda::gdn
