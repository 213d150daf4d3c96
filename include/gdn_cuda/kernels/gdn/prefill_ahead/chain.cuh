// The chain of gdn/prefill_ahead: the warpgroup that takes 64 rows of the state from chunk to chunk,
//
//     S k^T -> X -> X^T T^T -> V' -> S <- exp(G_C) S + V'^T exp(G_C - G) k.
//
// Its products leave the tensor cores idle while it rounds and scales between them. The outputs' products belong there, in
// another warpgroup (prefill_ahead_outputs.cuh): a warp is held up until its wgmmas have entered the queue, so S q^T in this
// one would delay X. The rounded S and V' go there as left operands, in registers' order.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_ahead/plan.cuh>
#include <gdn_cuda/kernels/chunked/products.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillChain : PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>> {
    using Base = PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>>;
    using Base::add_inverse_rest, Base::add_values_rest_to_state, Base::form_x, Base::load_values, Base::pack_update,
        Base::pack_values, Base::pack_values_rest, Base::read_factors, Base::release, Base::start_update,
        Base::start_with_state, Base::start_with_tokens, Base::store_output_tile, Base::store_output_without_tma,
        Base::values_piece;
    using Base::args, Base::shared, Base::work, Base::state, Base::rounded_state;
    using Base::checkpoint, Base::find_lane, Base::first, Base::last, Base::load_state, Base::products_may_overflow,
        Base::round_state, Base::run_tokens, Base::store_state;
    using Base::kStateSteps, Base::kTokenSteps;
    using Base::lane, Base::thread;
    using Plan = typename Base::Plan;
    using TokenFactors = typename Base::TokenFactors;

    const typename Base::StatePlace carried;  // the state where a window of chunks begins or ends inside the sequence

    __device__ __forceinline__ PrefillChain(Plan& shared, const PrefillArgs& args, float* carried)
        : Base(shared, args, shared.work), carried{carried} {}

    __device__ __forceinline__ void run() {
        load_state(work.begins ? first() : carried);
        warpgroup_fence_operand(state);
        round_state();
        give_state(0);
#pragma unroll 1
        for (int chunk = 0, checked = -1;;) {
            chunk = run_chunks(chunk, checked);
            if (chunk >= work.chunks) break;
            if (products_may_overflow(chunk)) {
                run_chunk_by_tokens(chunk);
                ++chunk;
            } else {
                checked = chunk;
            }
        }
        store_state(work.ends ? last() : carried);
    }

  private:
    __device__ __forceinline__ void signal(unsigned long long& word) const {
        __syncwarp();
        if (lane == 0) barrier(word).arrive();
    }
    template <int kSteps>
    __device__ __forceinline__ void give(typename Plan::Fragment (&to)[kSteps][kWarpgroup],
                                         const unsigned (&x)[kSteps][4]) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
            *reinterpret_cast<uint4*>(to[step][thread].registers) = {x[step][0], x[step][1], x[step][2], x[step][3]};
    }
    // Before the chunk whose initial state it is; after the last, nobody takes it. The one before has been taken.
    __device__ __forceinline__ void give_state(int chunk) const {
        give(shared.fragments.state, rounded_state);
        signal(shared.state_given);
    }
    __device__ __forceinline__ void give_values(const unsigned (&x)[kTokenSteps][4], int chunk) const {
        give(shared.fragments.values, x);
        signal(shared.values_given);
    }
    // In place of the warp's values, which the next TMA load overwrites.
    __device__ __forceinline__ void give_rest(float (&d)[32], const unsigned (&x)[kTokenSteps][4], const PrefillTile& values) {
        unsigned rest[kTokenSteps][4];
        pack_values_rest(rest, d, x);
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step)
            store_shared(values_piece(values, step), uint4{rest[step][0], rest[step][1], rest[step][2], rest[step][3]});
        cutlass::arch::fence_view_async_shared();
    }

    // What a chunk needs first, read while products of the chunk before run.
    struct Ahead {
        unsigned values[kTokenSteps][4];
        TokenFactors of_key;
        unsigned decay, cancels;  // bits
    };
    __device__ __forceinline__ void read_ahead(Ahead& next, int chunk) {
        const ChunkStage<kConfig.stages> at(chunk);
        barrier(shared.ready[at.stage]).wait(at.parity);
        const auto& factors = shared.factors[at.stage];
        next.decay = load_shared_word(shared_address(&factors.decay));
        next.cancels = load_shared_word(shared_address(&factors.cancels));
        load_values(next.values, shared.stages[at.stage].value[0]);
        read_factors(next.of_key, factors.of_key);
    }

    // As PrefillValues::run_chunks; a test of a barrier takes 60 cycles even where nobody waits.
    __device__ __forceinline__ int run_chunks(int first, int checked) {
        const int chunks = work.chunks;
        int chunk = first;
        if (chunk >= chunks) return chunk;
        Ahead ahead;
        read_ahead(ahead, chunk);
#pragma unroll 1
        for (; chunk < chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            const auto& stage = shared.stages[current.stage];
            const auto& factors = shared.factors[current.stage];

            unsigned x[kTokenSteps][4], update[kTokenSteps][4];
            float d[32];
            start_with_state(d, stage.key);
            const float decay = __uint_as_float(ahead.decay);
            const bool resets = __shfl_sync(0xffffffffu, ahead.decay, 0) == __float_as_uint(kResets);
            const bool two_part = __shfl_sync(0xffffffffu, ahead.cancels, 0) != 0;
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
            form_x(x, ahead.values, d, ahead.of_key);
            if (resets && chunk != checked) [[unlikely]]
                break;
            start_with_tokens(d, x, stage.inverse, false);
            barrier(shared.values_taken).wait(chunk & 1 ^ 1);  // so the outputs have seen the last phase of the next barrier
            signal(shared.products_queued);
            TokenFactors of_update;
            read_factors(of_update, factors.of_update);
#pragma unroll
            for (float& s : state) s *= decay;
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(d);
            if (two_part) [[unlikely]] {
                add_inverse_rest(d, x, factors.cancels, shared.inverse_rest[chunk % 2]);
                add_values_rest_to_state(d, of_update, stage);
            }
            pack_update(update, d, of_update);
            start_update(update, stage.key);
            pack_values(x, d);
            if (two_part) [[unlikely]]
                give_rest(d, x, stage.value[0]);
            give_values(x, chunk);
            barrier(shared.state_taken).wait(chunk & 1);
            if (chunk + 1 < chunks) read_ahead(ahead, chunk + 1);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(state);
            round_state();
            if (args.recurrence.steps.data != nullptr) [[unlikely]]
                store_state(checkpoint(chunk));
            release(current.stage);
            give_state(chunk + 1);
        }
        return chunk;
    }

    // The warpgroup of the outputs lends its tile, and leaves the chunk's outputs to this one.
    __device__ __forceinline__ void run_chunk_by_tokens(int chunk) {
        const bool without_tma = args.recurrence.cu_seqlens.data != nullptr && (chunk + 1) * kChunk > work.length;
        barrier(shared.values_taken).wait(chunk & 1 ^ 1);
        signal(shared.products_queued);
        if (thread == 0) shared.by_tokens = true;
        signal(shared.values_given);
        barrier(shared.values_taken).wait(chunk & 1);
        run_tokens(chunk);
        const bool stores = chunk >= work.first_output;
        store_output_tile(chunk, stores && !without_tma);
        if (stores && without_tma) store_output_without_tma(chunk);
        if (thread == 0) {
            cute::tma_store_wait<0>();
            shared.by_tokens = false;
        }
        if (args.recurrence.steps.data != nullptr) store_state(checkpoint(chunk));
        round_state();
        barrier(shared.state_taken).wait(chunk & 1);
        release(ChunkStage<kConfig.stages>(chunk).stage);
        give_state(chunk + 1);
    }
};

}  // namespace gdn_cuda::gdn
