// The chain of gdn/kda_own: the warpgroup that takes 64 rows of the state from chunk to chunk,
//
//     S K_in^T -> X -> S <- S diag(g) + X^T Z.
//
// Outputs are another warpgroup's (kda/outputs.cuh), which gets the rounded S and X as left operands.
#pragma once

#include <gdn_cuda/kernels/gdn/kda/by_token.cuh>
#include <gdn_cuda/kernels/gdn/kda/loads.cuh>

namespace gdn_cuda::gdn {

template <ChunkedConfig kConfig>
struct KdaChain : KdaOwner<kConfig> {
    using Base = KdaOwner<kConfig>;
    using Base::kIo, Base::shared, Base::state, Base::rounded_state, Base::thread;
    const KdaOwnWork& work;

    // A work tile's. residual_parity: the last work tile's.
    __device__ __forceinline__ KdaChain(KdaOwnerPlan<kConfig>& shared, const ChunkedArgs& args, const KdaOwnWork& work,
                                        unsigned residual_parity)
        : Base(shared, args, work), work(work), residual_parity(residual_parity) {}

    // Returns residual_parity.
    __device__ __forceinline__ unsigned run() {
        if (work.work_tile.rows == KdaOwnRows::transition)
            set_identity(state, *this);
        else
            load_state(*this, state_before(*this, work));
        warpgroup_fence_operand(state);
        read_ahead(*this, ahead, begin);
        round_for_chunk(*this, begin, ahead.flags);
        hand_over_state(*this);
#pragma unroll 1
        for (int chunk = begin, checked = -1;;) {
            chunk = run_chunks(chunk, checked);
            if (chunk == chunks) break;
            checked = chunk;
            if (!products_may_overflow(*this, ahead.values, ahead.flags)) continue;
            run_by_tokens(chunk++);
            if (chunk == chunks) break;
        }
        release_chunk(chunks - 1);
        if (work.work_tile.stores_state) store_state(*this, state_after(*this, work));
        return residual_parity;
    }

  private:
    unsigned residual_parity;
    // Shuffled, so uniform for the compiler; operands' descriptors would leave the uniform registers otherwise.
    const int begin = __shfl_sync(0xffffffffu, work.begin, 0), chunks = __shfl_sync(0xffffffffu, work.tokens.chunks, 0);
    KdaReadAhead ahead;
    int next_checkpoint = find_checkpoint(begin);

    // The first chunk from `chunk` on whose state is a checkpoint.
    __device__ __forceinline__ int find_checkpoint(int chunk) const {
        if (this->args.call.steps.data == nullptr) return chunks;
        while (chunk < chunks && !ends_checkpoint(*this, chunk)) ++chunk;
        return chunk;
    }
    __device__ __forceinline__ void release_chunk(int chunk) { this->release(PipelineStage<kConfig.stages>(chunk).index); }
    __device__ __forceinline__ void store_checkpoint(int chunk) {
        if (chunk == next_checkpoint) [[unlikely]] {
            store_state(*this, checkpoint(*this, chunk));
            next_checkpoint = find_checkpoint(chunk + 1);
        }
    }
    // From a chunk's state to the next chunk's.
    __device__ __forceinline__ void go_on(int chunk) {
        round_for_chunk(*this, chunk + 1, ahead.flags);
        release_chunk(chunk);
        hand_over_state(*this);
    }
    // Stops before a chunk that resets the state, unless it is `checked`, and returns where it stopped: matrix products may
    // spread NaN over it. With wgmmas in flight at a loop's exit, ptxas would serialise all of them.
    __device__ __forceinline__ int run_chunks(int chunk, int checked) {
#pragma unroll 1
        for (;; ++chunk) {
            const PipelineStage<kConfig.stages> current(chunk);
            auto& stage = shared.stages[current.index];
            const unsigned now = ahead.flags;
            if (now & kKdaResets && chunk != checked) [[unlikely]]
                break;
            TokenOperand x;
            TokenFragment d;
            start_product<kIo>(d, rounded_state, stage.key_in);
            barrier(shared.values_empty).wait(chunk & 1 ^ 1);  // so the outputs have seen the last phase of the next barrier
            arrive_by_warp(*this, shared.products_queued);
            scale_columns(*this, shared.factors[current.index].decay);
            const bool cancels = now & kKdaCancels;
            wait_for_product(d);
            form_x<kIo>(x, ahead.values, d, ahead.key_norm);
            start_product_mn<kIo>(state, x, stage.update);
            if (cancels) [[unlikely]]
                arrive_by_warp(*this, shared.tiles_read);
            hand_over_values(*this, x);
            const bool is_empty = barrier(shared.state_empty).try_wait(chunk & 1);  // beside the next wait, which takes as long
            const bool goes_on = chunk + 1 < chunks;
            if (goes_on) read_ahead(*this, ahead, chunk + 1);
            if (!is_empty) barrier(shared.state_empty).wait(chunk & 1);
            wait_for_product(state);
            if (cancels) [[unlikely]] {
                barrier(shared.residual_full).wait(residual_parity);
                residual_parity ^= 1;
                start_product_mn<kIo>(state, x, stage.update_residual());
                wait_for_product(state);
            }
            store_checkpoint(chunk);
            if (!goes_on) return chunk + 1;
            go_on(chunk);
        }
        return chunk;
    }
    // The warpgroup of the outputs leaves the chunk's to this one.
    __device__ __forceinline__ void run_by_tokens(int chunk) {
        const PipelineStage<kConfig.stages> current(chunk);
        auto& stage = shared.stages[current.index];
        barrier(shared.values_empty).wait(chunk & 1 ^ 1);
        if (thread == 0) shared.by_tokens = true;
        arrive_by_warp(*this, shared.products_queued);
        arrive_by_warp(*this, shared.values_full);
        if (ahead.flags & kKdaCancels) {
            arrive_by_warp(*this, shared.tiles_read);
            barrier(shared.residual_full).wait(residual_parity);
            residual_parity ^= 1;
        }
        barrier(shared.values_empty).wait(chunk & 1);
        run_kda_tokens(*this, chunk, stage);
        store_output(*this, chunk, stage.value);
        if (thread == 0) shared.by_tokens = false;
        barrier(shared.state_empty).wait(chunk & 1);
        store_checkpoint(chunk);
        if (chunk + 1 == chunks) return;
        read_ahead(*this, ahead, chunk + 1);
        go_on(chunk);
    }
};

}  // namespace gdn_cuda::gdn
