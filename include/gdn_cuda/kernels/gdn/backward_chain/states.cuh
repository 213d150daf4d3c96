// The rule of the chain forward in time: the states again, and what gradients need of the values,
//
//     X = V - exp(G) K S^T      V' = T X      R = V' / beta      S <- exp(G_C) S + (exp(G_C - G) V')^T K.
//
// T, X, and V' in the update of S, are used in two 16-bit parts, as roundings add up over chunks where gates are slow; R where
// entries of T cancel.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/handover.cuh>
#include <gdn_cuda/kernels/gdn/prefill/values.cuh>

namespace gdn_cuda::gdn {

struct StatesRule {
    template <class Owner>
    __device__ __forceinline__ static void run(Owner& own, int first) {
#pragma unroll 1
        for (int chunk = first; chunk < own.work.tokens.chunks; ++chunk) run_chunk(own, chunk);
    }

  private:
    template <class Owner>
    __device__ __forceinline__ static void run_chunk(Owner& own, int chunk) {
        constexpr ChunkedConfig kConfig = Owner::kConfig;
        constexpr DType kIo = Owner::kIo;
        auto& shared = own.shared;
        const PipelineStage<kConfig.stages> current(chunk);
        const auto& stage = shared.stages[current.index];
        const auto& matrices = shared.matrices[chunk % (kConfig.stages - 1)];
        const auto& cancels = shared.cancels[chunk % (kConfig.stages - 1)];
        const auto& factors = shared.factors[current.index];
        own.find_lane();
        barrier(shared.matrices_full[current.index]).wait(current.parity);

        TokenOperand x;
        TokenFragment d;
        TokenFactors scales;
        start_product<kIo>(d, own.rounded_state, stage.key);
        load_operand(x, stage.value[own.index()], own);
        const bool two_part = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned&>(cancels), 0) != 0;
        const i64 index = handover_index(own, chunk);
        store_rounded_state(own, index);
        read_factors(scales, factors.key_scale, own.t);
        wait_for_product(d);
        {
            TokenOperand residual;
            form_x_in_two_parts<kIo>(x, residual, d, scales);
            start_product<kIo>(d, residual, &matrices.inverse);
            start_product<kIo>(d, x, &matrices.inverse, true);
            start_product<kIo>(d, x, &matrices.inverse_residual, true);
        }
        scale_fragment(own.state, shared.decay[current.index]);
        read_factors(scales, factors.update_scale, own.t);
        wait_for_product(d);
        TokenOperand update, update_residual;
        pack_scaled_tokens<kIo>(update, d, scales);
        pack_scaled_tokens_residual<kIo>(update_residual, d, scales, update);
        start_product_mn<kIo>(own.state, update, stage.key);
        start_product_mn<kIo>(own.state, update_residual, stage.key);
        store_errors(own, d, factors.beta, index, two_part);
        wait_for_product(own.state);
        own.round_state();
        own.release(current.index);
    }

    // x: from values to the rounded X = V - exp(G) K S^T.
    template <DType kIo>
    __device__ __forceinline__ static void form_x_in_two_parts(TokenOperand& x, TokenOperand& residual, TokenFragment& d,
                                                               const TokenFactors& key_scale) {
        for_each_token_pair(d, [&](int step, int i, float& s, float& s_next) {
            const float2 key = key_scale[2 * step + i / 2], v = unpack<kIo>(x[step][i]);
            const float first = v.x - key.x * s, second = v.y - key.y * s_next;
            x[step][i] = pack<kIo>(first, second);
            residual[step][i] = pack_residual<kIo>(first, second, x[step][i]);
        });
    }
    // R, which replaces V'.
    template <class Owner>
    __device__ __forceinline__ static void store_errors(const Owner& own, TokenFragment& d, const float (&beta)[kChunk],
                                                        i64 index, bool two_part) {
        TokenFactors inverse;
        read_factors(inverse, beta, own.t);
        for (float2& each : inverse) each = {__fdividef(1.f, each.x), __fdividef(1.f, each.y)};
        scale_tokens(d, inverse);
        store_part(own, d, index, 0);
        if (two_part) [[unlikely]] {
            for_each_token_pair(d, [](int, int, float& x, float& next) {
                const float2 rounded = unpack<Owner::kIo>(pack<Owner::kIo>(x, next));
                x -= rounded.x;
                next -= rounded.y;
            });
            store_part(own, d, index, 1);
        }
    }
    template <class Owner>
    __device__ __forceinline__ static void store_part(const Owner& own, const TokenFragment& part, i64 index, int which) {
        if (own.thread == 0) cute::tma_store_wait<0>();
        own.warpgroup_sync();
        write_output_tile(own, part);
        cutlass::arch::fence_view_async_shared();
        own.warpgroup_sync();
        if (own.thread > 0) return;
        tma_store(own.args.output, {own.work.first_row + own.index() * kValueRows, which, 0, static_cast<int>(index)},
                  own.shared.output[own.index()].bytes);
        cute::tma_store_arrive();
    }
};

}  // namespace gdn_cuda::gdn
