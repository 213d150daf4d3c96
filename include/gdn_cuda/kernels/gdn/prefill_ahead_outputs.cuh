// The outputs of gdn/prefill_ahead: o = scale exp(G) q S^T + P V', of the 64 rows of the state that a chain owns
// (prefill_ahead_chain.cuh). S and V' come from the same warps of the chain, as left operands.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_ahead_plan.cuh>
#include <gdn_cuda/kernels/gdn/prefill_products.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
struct PrefillOutputs : PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>> {
    using Base = PrefillProducts<kConfig, PrefillOwnerPlan<kConfig>>;
    using Base::add_scores_rest, Base::read_factors, Base::release, Base::scale_tokens, Base::start_with_state,
        Base::start_with_tokens, Base::store_output, Base::store_output_without_tma;
    using Base::args, Base::shared, Base::work, Base::rounded_state;
    using Base::find_lane, Base::warpgroup_sync;
    using Base::kStateSteps, Base::kTokenSteps;
    using Base::lane, Base::thread;
    using Plan = typename Base::Plan;

    unsigned taken = 0;  // left operands V', since the start

    __device__ __forceinline__ PrefillOutputs(Plan& shared, const PrefillArgs& args) : Base(shared, args) {}

    __device__ __forceinline__ void run() {
        const bool packed = args.recurrence.cu_seqlens.data != nullptr;
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const ChunkStage<kConfig.stages> current(chunk);
            const auto& stage = shared.stages[current.stage];
            const auto& factors = shared.factors[current.stage];
            find_lane();
            barrier(shared.ready[current.stage]).wait(current.parity);
            take_state(chunk);
            float output[32];
            unsigned x[kTokenSteps][4];
            typename Base::TokenFactors of_query;
            start_with_state(output, stage.query);
            read_factors(of_query, factors.of_query);
            const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(output);
            scale_tokens(output, of_query);
            wait_for_values();
            if (__shfl_sync(0xffffffffu, shared.by_tokens, 0)) [[unlikely]] {
                if (thread == 0) cute::tma_store_wait<0>();  // the chain writes the tile
                signal_values_taken();
                release(current.stage);
                continue;
            }
            take_values(x);
            if (two_part) [[unlikely]] {
                unsigned rest[kTokenSteps][4];
                wait_for_values();
                take_values(rest);
                start_with_tokens(output, rest, stage.scores, true);
                cute::warpgroup_wait<0>();
                warpgroup_fence_operand(output);
                add_scores_rest(output, x, stage, factors);
            }
            start_with_tokens(output, x, stage.scores, true);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(output);
            release(current.stage);
            const bool by_tma = !packed || (chunk + 1) * kChunk <= work.length;
            store_output(output, chunk, by_tma);
            if (!by_tma) [[unlikely]]
                store_output_without_tma(chunk);
        }
        if (thread == 0) cute::tma_store_wait<0>();
    }

  private:
    __device__ __forceinline__ void take_state(int chunk) {
        barrier(shared.state_given).wait(chunk & 1);
#pragma unroll
        for (int step = 0; step < kStateSteps; ++step) take(rounded_state[step], shared.fragments.state[step][thread]);
        __syncwarp();
        if (lane == 0) barrier(shared.state_taken).arrive();
    }
    __device__ __forceinline__ void wait_for_values() const { barrier(shared.values_given).wait(taken & 1); }
    __device__ __forceinline__ void signal_values_taken() {
        ++taken;
        __syncwarp();
        if (lane == 0) barrier(shared.values_taken).arrive();
    }
    __device__ __forceinline__ void take_values(unsigned (&x)[kTokenSteps][4]) {
#pragma unroll
        for (int step = 0; step < kTokenSteps; ++step) take(x[step], shared.fragments.values[step][thread]);
        signal_values_taken();
    }
    __device__ __forceinline__ static void take(unsigned (&x)[4], const typename Plan::Fragment& from) {
        const uint4 four = *reinterpret_cast<const uint4*>(from.registers);
        x[0] = four.x;
        x[1] = four.y;
        x[2] = four.z;
        x[3] = four.w;
    }
};

}  // namespace gdn_cuda::gdn
