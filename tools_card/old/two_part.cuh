// The rare chunks in which entries of T cancel (kCancelThreshold): T, V' and P are used in two 16-bit parts, and these add the
// products with the second parts. Registers are short, so what is rarely needed is computed again rather than kept.
#pragma once

#include <gdn_cuda/kernels/chunked/outputs.cuh>
#include <gdn_cuda/kernels/chunked/token_products.cuh>

namespace gdn_cuda::gdn {

// d += x T_residual^T, for the columns of T that cancel.
template <class Owner>
__device__ __forceinline__ void add_inverse_residual(TokenFragment& d, const TokenOperand& x,
                                                     const typename Owner::Plan::CancelFlags& cancels,
                                                     const SwizzledTile& inverse_residual) {
    const auto right = tile_operand(&inverse_residual, 0);
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {
        if (!__shfl_sync(0xffffffffu, cancels.column[step], 0)) continue;  // inverse_residual has an earlier chunk's
        cute::warpgroup_arrive();
        Product<Owner::kIo, 64, true>::run(d, x[step], right + k_major_step(step), true);
        cute::warpgroup_commit_batch();
        wait_for_product(d);
    }
}
// state += (rounding residual of update_scale V')^T k.
template <class Owner>
__device__ __forceinline__ void add_values_residual_to_state(Owner& own, TokenFragment& d, const TokenFactors& factors,
                                                             const SwizzledTile* keys) {
    constexpr DType kIo = Owner::kIo;
    const auto right = tile_operand(keys, sizeof(SwizzledTile));
#pragma unroll
    for (int step = 0; step < kTokenSteps; ++step) {  // one step at a time: registers are short
        unsigned residual[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 scale = factors[2 * step + i / 2];
            const float x = d[8 * step + 2 * i] * scale.x, next = d[8 * step + 2 * i + 1] * scale.y;
            residual[i] = pack_residual<kIo>(x, next, pack<kIo>(x, next));
        }
        cute::warpgroup_arrive();
        Product<kIo, Owner::kConfig.head_k, false>::run(own.state, residual, right + mn_major_step(step), true);
        cute::warpgroup_commit_batch();
        wait_for_product(own.state);
        warpgroup_fence_operand(d);  // otherwise values recomputed from d would be kept, and spilled
    }
}
// output += V'_residual P^T.
template <class Owner>
__device__ __forceinline__ void add_values_residual(TokenFragment& output, TokenFragment& d, const TokenOperand& x,
                                                    const SwizzledTile& scores) {
    TokenOperand residual;
    pack_tokens_residual<Owner::kIo>(residual, d, x);
    start_product<Owner::kIo>(output, residual, &scores, true);
    wait_for_product(output);
}
// P_residual, in the owner's output tile.
template <class Owner, class Stage, class Factors>
__device__ __forceinline__ const SwizzledTile& form_scores_residual(const Owner& own, const Stage& stage,
                                                                    const Factors& factors) {
    TokenFragment products;
    start_token_products<Owner::kConfig>(products, stage.query, stage.key);
    if (own.thread == 0) cute::tma_store_wait<0>();
    own.warpgroup_sync();
    wait_for_product(products);
    decay(products, own, factors.query_row, factors.column);
    SwizzledTile& tile = own.shared.output[own.index()];
    store_scores<Owner::kIo, true>(products, own, tile, own.args.call.scale);
    cutlass::arch::fence_view_async_shared();
    own.warpgroup_sync();
    return tile;
}
// output += V' P_residual^T.
template <class Owner, class Stage, class Factors>
__device__ __forceinline__ void add_scores_residual(const Owner& own, TokenFragment& output, const TokenOperand& x,
                                                    const Stage& stage, const Factors& factors) {
    const SwizzledTile& residual = form_scores_residual(own, stage, factors);
    start_product<Owner::kIo>(output, x, &residual, true);
    wait_for_product(output);
}

}  // namespace gdn_cuda::gdn
