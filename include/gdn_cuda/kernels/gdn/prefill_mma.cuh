// gdn/prefill_mma: the chunked form of Gated Delta Net on the tensor cores of any GPU from sm_80 on, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j), i > j      T = (I + A)^-1 diag(beta)
//     P_ij = scale (q_i.k_j) exp(G_i - G_j), i >= j      V' = T (v - exp(G) k S^T)
//     o = scale exp(G) q S^T + P V'                      S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// A block takes a sequence, a value head and 64 or 128 rows of the state S, 16 per warp. Rows of S are independent, so a warp
// keeps its rows in registers from the first chunk to the last and computes everything transposed: S k^T, S q^T, X^T T^T, V'^T
// P^T and V'^T k have S, X or V' as the left operand, in registers, and keys, queries, T or P as the right one, in shared
// memory (prefill_mma/state.cuh). T and P, which need no state, are computed by the warps together (prefill_mma_tokens.cuh).
// cp.async loads the next chunk meanwhile. Norms, gates and scale are row and column factors; q, k and v are not rewritten.
//
// T, P and V' are sums of two 16-bit parts each: rounded once, they would be most of the error with beta near 2 and repeated
// keys, where V' alternates in sign and cancels.
//
// Gates are clamped at -160 ln 2 before the cumulative sum (chunk_common.cuh). A chunk with a reset and non-finite results is
// redone token by token.
//
// Bound: latency of one phase after another; registers allow an SM one block of 128 rows, or two of 64.
// docs/kernels/gdn_prefill_mma.md has the measurements.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_mma/state.cuh>
#include <gdn_cuda/kernels/gdn/prefill_mma/tokens.cuh>

namespace gdn_cuda::gdn {

template <PrefillMmaConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    prefill_mma(const __grid_constant__ PrefillMmaArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillMmaSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);

    const GdnCall& all = args.recurrence;
    const int sequence = blockIdx.z, head = blockIdx.y, first_row = static_cast<int>(blockIdx.x) * kConfig.rows_per_block();
    const Span span = span_of(all.cu_seqlens, sequence, all.tokens);
    i64 slot;
    int first_step;
    const Place place = starting_slot(all, sequence, slot, first_step);
    if (all.cu_seqlens.data != nullptr && sequence == all.sequences - 1)  // tokens of no sequence
        fill_outputs<kConfig>(all, sequence, span.start + span.length, all.tokens, head, first_row, 0.f);
    if (place != Place::run) {
        fill_outputs<kConfig>(all, sequence, span.start, span.start + span.length, head, first_row,
                              place == Place::skip ? 0.f : quiet_nan());
        return;
    }

    if (threadIdx.x == 0) {
        using Io = Storage<kConfig.io>;
        const int key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(all.heads_per_key));
        const auto first = [&](const auto& of, int h) { return sequence * of.batch + span.start * of.token + h * of.head; };
        const auto row = [&](const Rows& rows, int h) { return static_cast<Io*>(rows.data) + first(rows, h); };
        shared.work = {.key = row(all.key, key_head),
                       .query = row(all.query, key_head),
                       .value = row(all.value, head),
                       .output = row(all.output, head),
                       .gate = first(all.gate, head),
                       .beta = first(all.beta, head),
                       .initial_slot = slot * all.initial.slot,
                       .last_slot = slot * all.last.slot,
                       .checkpoints_before = packed_steps_before(all, sequence),
                       .length = span.length,
                       .chunks = (span.length + kChunk - 1) / kChunk,
                       .sequence = sequence,
                       .head = head,
                       .first_row = first_row,
                       .first_thread = 0,
                       .gate_type = all.gate.values.type,
                       .beta_type = all.beta.values.type};
    }
    __syncthreads();

    MmaTokens<kConfig> tokens(shared, args);
    MmaState<kConfig> state(shared, args);
    tokens.load_keys(0);
    tokens.load_queries(0);
    cp_async_fence();
    state.load_values(state.pieces(), 0);
    cp_async_fence();
    tokens.issue_scalar_loads(0);
    state.load();
#pragma unroll 1
    for (int chunk = 0; chunk < shared.work.chunks; ++chunk) {
        cp_async_wait<1>();  // for all but the values
        __syncthreads();     // the chunk has arrived, and all are done with the last one
        tokens.prepare(chunk);
        cp_async_fence();
        cp_async_wait<1>();  // for all but the next keys
        state.apply_state(chunk);
        tokens.finish();
        __syncthreads();  // T and P are complete
        tokens.load_next_queries(chunk);
        state.advance(chunk);
        tokens.load_next_keys(chunk);
        cp_async_fence();
        state.store_output_and_load_values(chunk);
        cp_async_fence();
        state.store_checkpoint(chunk);
    }
    state.store_last();
}

}  // namespace gdn_cuda::gdn
