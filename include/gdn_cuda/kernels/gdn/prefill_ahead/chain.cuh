// The chain of gdn/prefill_ahead: the warpgroup that takes 64 rows of the state from chunk to chunk,
//
//     S k^T -> X -> X^T T^T -> V' -> S <- exp(G_C) S + V'^T exp(G_C - G) k.
//
// Its products leave the tensor cores idle while it rounds and scales between them. The outputs' products belong there, in
// another warpgroup (prefill_ahead/outputs.cuh): a warp is held up until its wgmmas have entered the queue, so S q^T in this
// one would delay X. The rounded S and V' go there as left operands.
#pragma once

#include <gdn_cuda/kernels/chunked/ahead/handover.cuh>
#include <gdn_cuda/kernels/chunked/state.cuh>
#include <gdn_cuda/kernels/chunked/two_part.cuh>
#include <gdn_cuda/kernels/gdn/prefill/values.cuh>

namespace gdn_cuda::gdn {

// In place of the warp's values, which the next TMA load overwrites.
template <class Owner>
__device__ __forceinline__ void hand_over_residual(const Owner& own, TokenFragment& d, const TokenOperand& x,
                                                   const SwizzledTile& values) {
    TokenOperand residual;
    pack_tokens_residual<Owner::kIo>(residual, d, x);
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step)
        store_shared(values_vector(values, step, own),
                     uint4{residual[step][0], residual[step][1], residual[step][2], residual[step][3]});
    cutlass::arch::fence_view_async_shared();
}

// What a chunk needs first, read while products of the chunk before run.
struct ReadAhead {
    TokenOperand values;
    TokenFactors key_scale;
    unsigned decay, cancels;  // bits
};
template <class Owner>
__device__ __forceinline__ void read_ahead(const Owner& own, ReadAhead& next, int chunk) {
    const PipelineStage<Owner::kConfig.stages> at(chunk);
    barrier(own.shared.stage_full[at.index]).wait(at.parity);
    const auto& factors = own.shared.factors[at.index];
    next.decay = load_shared_word(shared_address(&factors.decay));
    next.cancels = load_shared_word(shared_address(&factors.cancels));
    load_operand(next.values, own.shared.stages[at.index].value[0], own);
    read_factors(next.key_scale, factors.key_scale, own.t);
}

// As run_chunks of gdn/prefill; a test of a barrier takes 60 cycles even where nobody waits.
template <class Owner>
__device__ __forceinline__ int run_chain(Owner& own, int first, int checked) {
    constexpr DType kIo = Owner::kIo;
    auto& shared = own.shared;
    const int chunks = own.work.tokens.chunks;
    int chunk = first;
    if (chunk >= chunks) return chunk;
    ReadAhead ahead;
    read_ahead(own, ahead, chunk);
#pragma unroll 1
    for (; chunk < chunks; ++chunk) {
        const PipelineStage<Owner::kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];

        TokenOperand x, update;
        TokenFragment d;
        start_product<kIo>(d, own.rounded_state, stage.key);
        const float decay = __uint_as_float(ahead.decay);
        const bool resets = __shfl_sync(0xffffffffu, ahead.decay, 0) == __float_as_uint(kResets);
        const bool two_part = __shfl_sync(0xffffffffu, ahead.cancels, 0) != 0;
        wait_for_product(d);
        form_x<kIo>(x, ahead.values, d, ahead.key_scale);
        if (resets && chunk != checked) [[unlikely]]
            break;
        start_product<kIo>(d, x, &stage.inverse);
        barrier(shared.values_empty).wait(chunk & 1 ^ 1);  // so the outputs have seen the last phase of the next barrier
        arrive_by_warp(own, shared.products_queued);
        TokenFactors update_scale;
        read_factors(update_scale, factors.update_scale, own.t);
        scale_fragment(own.state, decay);
        wait_for_product(d);
        if (two_part) [[unlikely]] {
            add_inverse_residual<Owner>(d, x, factors.cancels, shared.inverse_residual[chunk % 2]);
            add_values_residual_to_state(own, d, update_scale, stage.key);
        }
        pack_scaled_tokens<kIo>(update, d, update_scale);
        start_product_mn<kIo>(own.state, update, stage.key);
        pack_tokens<kIo>(x, d);
        if (two_part) [[unlikely]]
            hand_over_residual(own, d, x, stage.value[0]);
        hand_over_values(own, x);
        barrier(shared.state_empty).wait(chunk & 1);
        if (chunk + 1 < chunks) read_ahead(own, ahead, chunk + 1);
        wait_for_product(own.state);
        own.round_state();
        if (ends_checkpoint(own, chunk)) [[unlikely]]
            store_state(own, checkpoint(own, chunk));
        own.release(current.index);
        hand_over_state(own);
    }
    return chunk;
}

// The warpgroup of the outputs lends its tile, and leaves the chunk's outputs to this one.
template <class Owner>
__device__ __forceinline__ void run_chain_by_tokens(Owner& own, int chunk) {
    auto& shared = own.shared;
    const bool without_tma = is_packed(own.args) && end_of<Owner::kConfig>(own.work.tokens, chunk) > own.work.tokens.length;
    barrier(shared.values_empty).wait(chunk & 1 ^ 1);
    arrive_by_warp(own, shared.products_queued);
    if (own.thread == 0) shared.by_tokens = true;
    arrive_by_warp(own, shared.values_full);
    barrier(shared.values_empty).wait(chunk & 1);
    run_tokens(own, chunk);
    const bool stores = chunk >= own.work.tokens.first_output;
    store_output_tile(own, chunk, stores && !without_tma);
    if (stores && without_tma) store_output_without_tma(own, chunk);
    if (own.thread == 0) {
        cute::tma_store_wait<0>();
        shared.by_tokens = false;
    }
    if (ends_checkpoint(own, chunk)) store_state(own, checkpoint(own, chunk));
    own.round_state();
    barrier(shared.state_empty).wait(chunk & 1);
    own.release(PipelineStage<Owner::kConfig.stages>(chunk).index);
    hand_over_state(own);
}

template <ChunkedConfig kConfig>
struct GdnChain : AheadOwner<kConfig> {
    using Base = AheadOwner<kConfig>;
    const StatePlace carried;  // the state where a window of chunks begins or ends inside the sequence

    __device__ __forceinline__ GdnChain(OwnerPlan<kConfig>& shared, const ChunkedArgs& args, float* carried)
        : Base(shared, args, shared.work), carried{carried} {}

    __device__ __forceinline__ void run() {
        load_state(*this, this->work.states.begins ? initial_state(*this) : carried);
        warpgroup_fence_operand(this->state);
        this->round_state();
        hand_over_state(*this);
        for_each_chunk(
            *this, 0, [&](int chunk, int checked) { return run_chain(*this, chunk, checked); },
            [&](int chunk) { run_chain_by_tokens(*this, chunk); });
        store_state(*this, this->work.states.ends ? final_state(*this) : carried);
    }
};

}  // namespace gdn_cuda::gdn
