// gdn/kda_mma: the chunked form of Kimi Delta Attention on the tensor cores of any GPU from sm_80 on, 16 tokens a chunk.
//
//     S <- S diag(alpha_t)        S <- S + beta_t (v_t - S k_t) k_t^T        o_t = scale S q_t
//
// alpha has a value for every channel d of the key. With D_ij = the product of the decays of tokens j + 1 to i:
//
//     A_ij = beta_i sum_d k_id k_jd D_ij,d, i > j        T = (I + A)^-1 diag(beta)
//     P_ij = scale sum_d q_id k_jd D_ij,d, i >= j        V' = T (v - K_in S^T)
//     o = scale Q_in S^T + P V'                          S <- S diag(decay of the chunk) + V'^T K_out
//
// K_in, Q_in: times the decays from the chunk's start on; K_out: times those up to its end.
//
// Decays are multiplied, never their logarithms added, and a score's decay is the product of two, up to and from a border
// between its tokens: halves of 8, 4, 2 and 1 tokens cover every pair once. Both products are at most 1 whatever the gates,
// nothing is divided, and a decay of 0 is an exact reset. With 16 tokens these four levels take as many MMAs as one block about
// a middle token, whose reciprocals would need other code where decays are fast; with 64 they would take two more levels, an
// inverse of several blocks, and keys, queries and operands of 64 tokens, which shared memory has no room for beyond dk = 128.
//
// A block processes a sequence, a value head and 64 or 128 rows of the state S, 16 per warp, which stay in registers from the
// first chunk to the last (chunked_mma/state_rows.cuh). Three barriers a chunk:
//     operands    a thread has two channels of half of the chunk (kda_mma/elements.cuh)
//     scores      four warps, a level each (kda_mma/tokens.cuh); all warps: X = v - K_in S^T and Q_in S^T (kda_mma/rows.cuh)
//     the rest    each warp inverts I + A for itself
// T, P, X, V' and K_out are each the sum of two 16-bit parts: where keys repeat and beta is near 2, V' is large and alternates
// in sign, so that what rounding each once leaves does not cancel in the state. A chunk with a reset and results that are not
// finite is computed again token by token.
//
// Bound: latency of a chunk's phases (suspected; not measured).
#pragma once

#include <gdn_cuda/kernels/gdn/kda_mma/elements.cuh>
#include <gdn_cuda/kernels/gdn/kda_mma/rows.cuh>
#include <gdn_cuda/kernels/gdn/kda_mma/tokens.cuh>

namespace gdn_cuda::gdn {

template <KdaMmaConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    kda_mma(const __grid_constant__ KdaMmaArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<KdaMmaPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    const GdnCall& call = args.call;
    if (!begin_block<kConfig>(call, shared.work)) return;

    KdaMmaTokens<kConfig> tokens(shared, call);
    KdaMmaElements<kConfig> elements(shared, call);
    KdaMmaRows<kConfig> own(shared, call, args.state);
    tokens.clear_resets();
    tokens.load(0);
    cp_async_fence();
    own.load_values(0);
    cp_async_fence();
    const auto issue_gate_loads = [&](int chunk) {
        tokens.issue_beta_loads(chunk);
        if (elements.has_channels()) elements.issue_gate_loads(chunk);
    };
    issue_gate_loads(0);
    own.load();
    const int chunks = static_cast<int>(ceil_div(shared.work.length, kKdaMmaTokens));
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        cp_async_wait<1>();  // all but the values
        __syncthreads();     // keys and queries have arrived, and no warp reads the last chunk's operands any more
        tokens.store_factors(chunk);
        if (elements.has_channels()) elements.store_operands(chunk);
        __syncthreads();
        if (kConfig.loads_gates_early()) issue_gate_loads(chunk + 1);
        tokens.form_scores();
        if (own.has_rows()) own.apply_state();
        __syncthreads();  // A and P are complete, and no warp reads the keys any more
        tokens.load(chunk + 1);
        cp_async_fence();
        if (own.has_rows()) {
            const bool is_last = chunk + 1 == chunks && call.last.data == nullptr && call.steps.data == nullptr;
            own.advance(chunk, is_last);
            own.store_output(chunk);
            own.load_values(chunk + 1);
            own.store_checkpoint_after((chunk + 1) * kKdaMmaTokens - 1);
        }
        cp_async_fence();
        if (!kConfig.loads_gates_early()) issue_gate_loads(chunk + 1);
    }
    own.store_last();
}

}  // namespace gdn_cuda::gdn
