// The role of gdn/prefill that runs ahead: it has chunks brought, spreads what their gates and norms say, and forms the scores
// of queries against keys.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_common.cuh>

namespace gdn_cuda::gdn {

// Gates of tokens 2 lane and 2 lane + 1, cumulated from the first of the chunk, in units of ln 2. A gate below kLowestGateLog2
// counts as that: its exponential is 0 all the same, and the sum keeps digits for the differences of later gates. `resets`:
// whether the exponential of some gate is 0.
__device__ __forceinline__ float2 cumulate(float2 gate, bool& resets) {
    const int lane = threadIdx.x % 32;
    gate = {at_least(gate.x * kLog2e, kLowestGateLog2), at_least(gate.y * kLog2e, kLowestGateLog2)};
    resets = __any_sync(0xffffffffu, gate.x < kResetGateLog2 || gate.y < kResetGateLog2);
    float sum = gate.x + gate.y;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += before;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    return {gate.x + (lane == 0 ? 0.f : before), sum};
}

template <PrefillConfig kConfig>
struct PrefillScores : Lane {
    using Plan = PrefillSharedPlan<kConfig>;
    static constexpr int kScalarWarp = 0;  // which has the fewest scores below the diagonal

    Plan& shared;
    const PrefillArgs& args;
    const PrefillWork& work = shared.work;

    __device__ __forceinline__ PrefillScores(Plan& shared, const PrefillArgs& args) : shared(shared), args(args) {
        find_place();
    }

    // By one thread of each warp but the one that brings scalars.
    __device__ __forceinline__ void bring_tiles(int chunk, const Turn<kConfig.stages>& turn) {
        if (chunk >= work.chunks || lane != 0 || warp == kScalarWarp) return;
        auto& stage = shared.stages[turn.stage];
        Barrier& loaded = barrier(shared.loaded[turn.stage]);
        const bool value = warp == 1, query = warp == 2;
        PrefillTile* tiles = value ? stage.value : query ? stage.query : stage.key;
        const TensorMap& map = value ? args.value : query ? args.query : args.key;
        const int head = value ? work.head : work.key_head, first_element = value ? work.first_value : 0;
        const int token = static_cast<int>(work.start) + chunk * kChunk;
        const int batch = args.recurrence.cu_seqlens.data != nullptr ? 0 : work.sequence;
        const int count = value ? kConfig.value_groups : kConfig.key_tiles();
        loaded.arrive_and_expect_tx(count * static_cast<int>(sizeof(PrefillTile)));
        tma_load(tiles[0].bytes, map, {first_element, head, token, batch}, loaded);
        if (count == 2) tma_load(tiles[1].bytes, map, {first_element + kTileElements, head, token, batch}, loaded);
    }
    // One warp's: gates and betas of tokens 2 lane and 2 lane + 1, asked for long before they are used.
    struct ScalarStream {
        const DType type;
        const int next;  // bytes from a token to the next
        const char* at;
        RawNumber raw[2];

        __device__ __forceinline__ ScalarStream(const Scalars& of, const PrefillWork& work)
            : type(of.values.type), next(static_cast<int>(of.token) * bytes_of(type)) {
            at = static_cast<const char*>(of.values.data) + (work.sequence * of.batch + work.head * of.head) * bytes_of(type) +
                 (work.start + 2 * (threadIdx.x % 32)) * next;
        }
        __device__ __forceinline__ void ask(int count) {
            const int first = 2 * (threadIdx.x % 32);
            if (first < count) raw[0].load({at, type}, 0);
            if (first + 1 < count) raw[1].load({at + next, type}, 0);
            at += static_cast<i64>(next) * kChunk;
        }
        __device__ __forceinline__ float2 take() const { return {raw[0].number(type), raw[1].number(type)}; }
    };
    __device__ __forceinline__ void ask(int chunk, ScalarStream& gates, ScalarStream& betas) const {
        for (RawNumber* raw : {gates.raw, betas.raw})
            raw[0] = raw[1] = {};  // by all: a copy of what is loaded would wait for it
        if (warp != kScalarWarp || chunk >= work.chunks) return;
        const int count = tokens_in(work, chunk);
        gates.ask(count);
        betas.ask(count);
    }
    // What was asked for, of this chunk. Tokens past the end have zeros: they neither decay nor change
    // the state.
    __device__ __forceinline__ void bring_scalars(int chunk, const Turn<kConfig.stages>& turn, ScalarStream& gates,
                                                  ScalarStream& betas) {
        if (warp != kScalarWarp || chunk >= work.chunks) return;
        auto& factors = shared.factors[turn.stage];
        bool resets;
        const float2 sums = cumulate(gates.take(), resets);
        reinterpret_cast<float2*>(factors.gate)[lane] = sums;
        reinterpret_cast<float2*>(factors.beta)[lane] = betas.take();
        if (lane == 31) shared.decay[turn.stage] = resets ? kResets : exp2_fast(sums.y);
        barrier(shared.loaded[turn.stage]).arrive();
    }

    // Factors of a token's key (half of the threads) or query, for everyone.
    __device__ __forceinline__ void share_factors(const typename Plan::Stage& stage, typename Plan::Factors& factors) {
        const int token = thread % kChunk;
        const bool of_key = thread < kChunk;
        const float log_norm =
            args.recurrence.qk_norm ? log_inverse_norm<kConfig>(of_key ? stage.key : stage.query, token) : 0.f;
        const float gate = factors.gate[token], end = factors.gate[kChunk - 1], scale = args.recurrence.scale;
        if (of_key) {
            factors.column[token] = gate - log_norm;
            factors.key_row[token] = gate + log_norm + __log2f(fabsf(factors.beta[token]));
            factors.of_key[token] = exp2_fast(gate + log_norm);
            factors.of_update[token] = exp2_fast(end - gate + log_norm);
        } else {
            factors.query_row[token] = gate + log_norm + __log2f(fabsf(scale));
            factors.of_query[token] = scale * exp2_fast(gate + log_norm);
        }
    }

    __device__ __forceinline__ void run() {
        ScalarStream gates(args.recurrence.gate, work), betas(args.recurrence.beta, work);
        ask(0, gates, betas);
#pragma unroll 1
        for (int chunk = 0; chunk < kConfig.stages; ++chunk) bring_tiles(chunk, Turn<kConfig.stages>(chunk));
        bring_scalars(0, Turn<kConfig.stages>(0), gates, betas);
        ask(1, gates, betas);
#pragma unroll 1
        for (int chunk = 0; chunk < work.chunks; ++chunk) {
            const Turn<kConfig.stages> turn(chunk), coming(chunk + 1);
            find_place();
            auto& stage = shared.stages[turn.stage];
            auto& factors = shared.factors[turn.stage];
            barrier(shared.loaded[turn.stage]).wait(turn.parity);
            if (tokens_in(work, chunk) < kChunk) [[unlikely]]
                NamedBarrier::sync(2 * kWarpgroup, kKeysBarrier);  // that others clear
            float products[32];
            start_token_products<kConfig>(products, stage.query, stage.key);
            share_factors(stage, factors);
            barrier(shared.factored[turn.stage]).arrive();
            barrier(shared.done[coming.stage]).wait(coming.parity ^ 1);
            if (chunk + 1 >= kConfig.stages) bring_tiles(chunk + 1, coming);
            bring_scalars(chunk + 1, coming, gates, betas);
            ask(chunk + 2, gates, betas);
            cute::warpgroup_wait<0>();
            warpgroup_fence_operand(products);
            if (chunk >= work.silent) {
                barrier(shared.factored[turn.stage]).wait(turn.parity);
                decay(products, *this, factors.query_row, factors.column);
                store_scores<kConfig.io, false>(products, *this, shared.matrices[chunk % (kConfig.stages - 1)].scores,
                                                args.recurrence.scale);
                cutlass::arch::fence_view_async_shared();
            }
            barrier(shared.ready[turn.stage]).arrive();
        }
    }
};

}  // namespace gdn_cuda::gdn
