// gdn/prefill_mma: the chunked form of Gated Delta Net on the tensor cores of any GPU from sm_80 on, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j), i > j      T = (I + A)^-1 diag(beta)
//     P_ij = scale (q_i.k_j) exp(G_i - G_j), i >= j      V' = T (v - exp(G) k S^T)
//     o = scale exp(G) q S^T + P V'                      S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// A block processes a sequence, a value head and 64 or 128 rows of the state S, 16 per warp. Rows of S are independent, so a
// warp keeps its rows in registers from the first chunk to the last and computes everything transposed: with X = v - exp(G) k
// S^T, the products S k^T, S q^T, X^T T^T, V'^T P^T and V'^T k have S, X or V' as the left operand, in registers, and keys,
// queries, T or P as the right one, in shared memory (prefill_mma/state.cuh). T and P need no state; the warps compute them
// together (chunked_mma/tokens.cuh) while cp.async loads the next chunk. Norms, gates and scale are factors of rows and
// columns; q, k and v are not rewritten.
//
// T, P and V' are each the sum of two 16-bit parts: rounded to one, they would cause most of the error with beta near 2 and
// repeated keys, where V' alternates in sign and cancels.
//
// Gates are clamped at -160 ln 2 before the cumulative sum (chunked/chunk.cuh). A chunk with a reset and results that are not
// finite is computed again token by token.
//
// Bound: latency of a chunk's phases, which depend on each other; registers allow an SM one block of 128 rows, or two of 64. On
// an H200, 24 % of what the bytes allow at 8 x 4096 tokens, 6 % for one sequence (docs/kernels/gdn_prefill_mma.md).
#pragma once

#include <gdn_cuda/kernels/gdn/chunked_mma/tokens.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma/plan.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma/state.cuh>

namespace gdn_cuda::gdn {

template <PrefillMmaConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    prefill_mma(const __grid_constant__ PrefillMmaArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<MmaPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);

    const GdnCall& call = args.recurrence;
    const int sequence = blockIdx.z, head = blockIdx.y, first_row = static_cast<int>(blockIdx.x) * kConfig.rows_per_block();
    const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
    i64 slot;
    int first_step;
    const Place place = starting_slot(call, sequence, slot, first_step);
    if (call.cu_seqlens.data != nullptr && sequence == call.sequences - 1)  // tokens after the last sequence
        fill_outputs<kConfig>(call, sequence, span.start + span.length, call.tokens, head, first_row, 0.f);
    if (place != Place::run) {
        fill_outputs_of_uncomputed<kConfig>(call, sequence, span, place, head, first_row);
        return;
    }

    if (threadIdx.x == 0) shared.work = work_of_block<kConfig>(call, sequence, span, slot, head, first_row);
    __syncthreads();

    MmaTokens<kConfig> tokens(shared, call);
    MmaRows<kConfig> own(shared, call, args.state);
    TokenOperands x;            // X of a chunk
    MmaLane::TokenSums output;  // and its output
    tokens.load_keys(0);
    tokens.load_queries(0);
    cp_async_fence();
    own.load_values(own.vectors(), 0);
    cp_async_fence();
    tokens.issue_scalar_loads(0);
    own.load();
#pragma unroll 1
    for (int chunk = 0; chunk < shared.work.chunks; ++chunk) {
        cp_async_wait<1>();  // all but the values
        __syncthreads();     // keys and queries have arrived, and no warp reads the last chunk's any more
        tokens.prepare(chunk);
        cp_async_fence();
        cp_async_wait<1>();  // all but the next keys
        apply_state(own, x, output, chunk);
        tokens.finish();
        __syncthreads();  // T and P are complete
        tokens.load_next_queries(chunk);
        advance(own, x, output, chunk);
        tokens.load_next_keys(chunk);
        cp_async_fence();
        own.store_output_and_load_values(chunk);
        cp_async_fence();
        own.store_checkpoint(chunk);
    }
    own.store_last();
}

}  // namespace gdn_cuda::gdn
