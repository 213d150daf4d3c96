// The rule of the chain forward in time: the states again, and what gradients need of the values,
//
//     X = V - exp(G) K S^T      V' = T X      R = V' / beta      S <- exp(G_C) S + (exp(G_C - G) V')^T K.
//
// T, X, and V' in the update of S, are used in two 16-bit parts, as roundings add up over chunks where gates are slow; R where
// entries of T cancel.
#pragma once

#include <gdn_cuda/kernels/chunked/outputs.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/handover.cuh>

namespace gdn_cuda::gdn {

struct StatesRule {
    template <class Owner>
    __device__ __forceinline__ static void run(Owner& own, int chunk) {
        constexpr ChunkedConfig kConfig = Owner::kConfig;
        constexpr DType kIo = Owner::kIo;
        auto& shared = own.shared;
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& factors = shared.factors[current.index];
        own.find_lane();
        barrier(shared.stage_full[current.index]).wait(current.parity);

        TokenOperand x, residual;
        TokenFragment d, values;
        TokenFactors scales;
        start_product<kIo>(d, own.rounded_state, stage.key);
        load_operand(x, stage.value[own.index()], own);
        const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(factors.cancels), 0) != 0;
        store_rounded_state(own, chunk);
        scale_fragment(own.state, factors.decay);
        read_factors(scales, factors.key_scale, own.t);
        wait_for_product(d);
        for_each_token_pair(d, [&](int step, int i, float& s, float& next) {  // X
            const float2 scale = scales[2 * step + i / 2], v = unpack<kIo>(x[step][i]);
            s = v.x - scale.x * s;
            next = v.y - scale.y * next;
        });
        pack_tokens<kIo>(x, d);
        start_product<kIo>(values, x, &stage.inverse);
        start_product<kIo>(values, x, &stage.inverse_residual, true);
        pack_tokens_residual<kIo>(residual, d, x);
        start_product<kIo>(values, residual, &stage.inverse, true);
        read_factors(scales, factors.update_scale, own.t);
        wait_for_product(values);
        pack_scaled_tokens<kIo>(x, values, scales);
        start_product_mn<kIo>(own.state, x, stage.key);
        pack_scaled_tokens_residual<kIo>(residual, values, scales, x);
        start_product_mn<kIo>(own.state, residual, stage.key);
        store_errors(own, values, factors.beta, chunk, two_part);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }

  private:
    // R, which replaces V'.
    template <class Owner>
    __device__ __forceinline__ static void store_errors(const Owner& own, TokenFragment& values, const float (&beta)[kChunk],
                                                        int chunk, bool two_part) {
        TokenFactors inverse;
        read_factors(inverse, beta, own.t);
        for (float2& each : inverse) each = {__fdividef(1.f, each.x), __fdividef(1.f, each.y)};
        scale_tokens(values, inverse);
        store_part(own, values, chunk, 0);
        if (two_part) [[unlikely]] {
            for_each_token_pair(values, [](int, int, float& x, float& next) {
                const float2 rounded = unpack<Owner::kIo>(pack<Owner::kIo>(x, next));
                x -= rounded.x;
                next -= rounded.y;
            });
            store_part(own, values, chunk, 1);
        }
    }
    template <class Owner>
    __device__ __forceinline__ static void store_part(const Owner& own, const TokenFragment& part, int chunk, int which) {
        if (own.thread == 0) cute::tma_store_wait<0>();
        own.warpgroup_sync();
        write_output_tile(own, part);
        cutlass::arch::fence_view_async_shared();
        own.warpgroup_sync();
        if (own.thread > 0) return;
        tma_store(own.args.output, {own.work.first_row + own.index() * kValueRows, which, 0, handover_index(own, chunk)},
                  own.shared.output[own.index()].bytes);
        cute::tma_store_arrive();
    }
};

}  // namespace gdn_cuda::gdn
