// The outputs of gdn/prefill_ahead: o = scale exp(G) q S^T + P V', of the 64 rows of the state that a chain owns. S and V' come
// from the same warps of the chain, as left operands (prefill_ahead_chain.cuh).
//
// S q^T follows the chain's X^T T^T in the tensor cores' queue, and P V' the update of the state. Another warp stores the tile.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_ahead/plan.cuh>
#include <gdn_cuda/kernels/chunked/products.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillOutputs : PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>> {
    using Base = PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>>;
    using Base::add_scores_rest, Base::read_factors, Base::release, Base::scale_tokens, Base::start_with_state,
        Base::start_with_tokens, Base::store_output_without_tma, Base::write_output_tile;
    using Base::args, Base::shared, Base::work, Base::rounded_state;
    using Base::kTokenSteps;
    using Base::lane, Base::thread;
    using Base::warpgroup_sync;
    using Plan = typename Base::Plan;

    __device__ __forceinline__ PrefillOutputs(Plan& shared, const PrefillArgs& args) : Base(shared, args, shared.work) {}

    __device__ __forceinline__ void run() {
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            if (chunk < work.first_output) {
                skip_chunk(chunk);
                continue;
            }
            const ChunkStage<kConfig.stages> current(chunk);
            const auto& stage = shared.stages[current.stage];
            const auto& factors = shared.factors[current.stage];
            const unsigned parity = chunk & 1;
            barrier(shared.state_given).wait(parity);
            take(rounded_state, shared.fragments.state);
            signal(shared.state_taken);
            barrier(shared.products_queued).wait(parity);  // so the chain has seen the stage loaded
            float output[32];
            typename Base::TokenFactors of_query;
            start_with_state(output, stage.query);
            read_factors(of_query, factors.of_query);
            const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(output);
            scale_tokens(output, of_query);
            barrier(shared.output_read).wait(parity ^ 1);  // of the chunk before
            barrier(shared.values_given).wait(parity);
            const bool by_tokens = __shfl_sync(0xffffffffu, shared.by_tokens, 0);
            bool is_stored = by_tokens;
            if (by_tokens) [[unlikely]]
                signal(shared.values_taken);
            else
                is_stored = finish(output, chunk, two_part);
            release(current.stage);
            if (thread == 0) shared.is_stored = is_stored;
            signal(shared.output_written);
        }
    }

  private:
    // A chunk without outputs: only the barriers on which the chain and the storing warp wait.
    __device__ __forceinline__ void skip_chunk(int chunk) {
        const unsigned parity = chunk & 1;
        barrier(shared.state_given).wait(parity);
        signal(shared.state_taken);
        barrier(shared.products_queued).wait(parity);
        barrier(shared.output_read).wait(parity ^ 1);
        barrier(shared.values_given).wait(parity);
        signal(shared.values_taken);
        release(ChunkStage<kConfig.stages>(chunk).stage);
        if (thread == 0) shared.is_stored = true;
        signal(shared.output_written);
    }
    // Adds P V' and writes the tile; returns whether it was stored, too.
    __device__ __forceinline__ bool finish(float (&output)[32], int chunk, bool two_part) {
        const int at = ChunkStage<kConfig.stages>(chunk).stage;
        const auto& stage = shared.stages[at];
        unsigned x[kTokenSteps][4];
        take(x, shared.fragments.values);
        signal(shared.values_taken);
        if (two_part) [[unlikely]] {
            unsigned rest[kTokenSteps][4];
#pragma unroll
            for (int step = 0; step < kTokenSteps; ++step)
                take(rest[step], load_shared(Base::values_piece(stage.value[0], step)));
            start_with_tokens(output, rest, stage.scores, true);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(output);
            add_scores_rest(output, x, stage, shared.factors[at]);
            warpgroup_sync();  // the tile held the rest
        }
        start_with_tokens(output, x, stage.scores, true);
        cute::warpgroup_wait<0>();
        warpgroup_fence_operand(output);
        write_output_tile(output);
        if (args.recurrence.cu_seqlens.data == nullptr || (chunk + 1) * kChunk <= work.length) [[likely]]
            return false;
        warpgroup_sync();
        store_output_without_tma(chunk);
        return true;
    }
    __device__ __forceinline__ void signal(unsigned long long& word) const {
        __syncwarp();
        if (lane == 0) barrier(word).arrive();
    }
    __device__ __forceinline__ static void take(unsigned (&x)[4], const uint4& four) {
        x[0] = four.x;
        x[1] = four.y;
        x[2] = four.z;
        x[3] = four.w;
    }
    template <int kSteps>
    __device__ __forceinline__ void take(unsigned (&x)[kSteps][4],
                                         const typename Plan::Fragment (&from)[kSteps][kWarpgroup]) const {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) take(x[step], *reinterpret_cast<const uint4*>(from[step][thread].registers));
    }
};

}  // namespace gdn_cuda::gdn
