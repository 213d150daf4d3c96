// gdn/prefill: the chunked form of Gated Delta Net on Hopper's tensor cores, 64 tokens a chunk.
//
//     A_ij = beta_i (k_i.k_j) exp(G_i - G_j) for i > j      T = (I + A)^-1 diag(beta)
//     V' = T (v - exp(G) k S^T)                             P_ij = scale (q_i.k_j) exp(G_i - G_j) for i >= j
//     o = scale exp(G) q S^T + P V'                         S <- exp(G_C) S + V'^T exp(G_C - G) k
//
// A block takes a segment of a sequence, a value head and 64 rows of the state for each of its value warpgroups. Rows of S
// never meet, so a value warpgroup keeps its rows in registers from the first chunk to the last and computes everything
// transposed: S k^T, S q^T, X^T T^T, V'^T P^T and V'^T k have S, X or V' on the left, in registers, and keys, queries, T or P
// on the right, in shared memory as they came. Helper warpgroups run ahead: one has chunks brought (TMA) and forms P, others
// invert I + A. Norms, gates and scale are factors of rows and columns, so q, k and v are never rewritten.
//
// Bound: instructions and their supply: the tensor cores are busy some 40 % of the time. docs/kernels/gdn_prefill.md has the
// shares reached.
#pragma once

#include <gdn_cuda/kernels/gdn/prefill_inverse.cuh>
#include <gdn_cuda/kernels/gdn/prefill_scores.cuh>
#include <gdn_cuda/kernels/gdn/prefill_segments.cuh>
#include <gdn_cuda/kernels/gdn/prefill_values.cuh>

namespace gdn_cuda::gdn {

template <PrefillConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), 1) prefill(const __grid_constant__ PrefillArgs args) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<PrefillSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= 227 * 1024);

    const RecurrentArgs& all = args.recurrence;
    const int sequence = static_cast<int>(blockIdx.z) / args.segments, segment = static_cast<int>(blockIdx.z) % args.segments;
    const int head = blockIdx.y;
    const Span span = span_of(all.cu_seqlens, sequence, all.tokens);
    i64 slot;
    int first_step;
    const Place place = starting_slot(all, sequence, slot, first_step);
    if (segment == 0 && all.cu_seqlens.data != nullptr && sequence == all.sequences - 1)  // tokens that belong to no sequence
        fill_outputs<kConfig>(all, sequence, span.start + span.length, all.tokens, head, 0.f);
    if (place != Place::run) {
        if (segment == 0)
            fill_outputs<kConfig>(all, sequence, span.start, span.start + span.length, head,
                                  place == Place::skip ? 0.f : quiet_nan());
        return;
    }
    const int chunks = (span.length + kChunk - 1) / kChunk, share = (chunks + args.segments - 1) / args.segments;
    const int segment_begins = min(segment * share, chunks), end = min(segment_begins + share, chunks);
    if (segment > 0 && segment_begins == end) return;
    const int begin =
        segment == 0 ? 0 : first_that_matters<kConfig>(all, span, sequence, head, segment_begins, shared.factors[0].gate);

    if (threadIdx.x == 0) {
        shared.work = {.start = span.start + begin * kChunk,
                       .initial_slot = slot * all.initial.slot,
                       .last_slot = slot * all.last.slot,
                       .length = min(span.length, end * kChunk) - begin * kChunk,
                       .chunks = end - begin,
                       .silent = segment_begins - begin,
                       .tokens_before = begin * kChunk,
                       .begins = begin == 0,
                       .ends = end == chunks,
                       .segments = segment + 1,
                       .sequence = sequence,
                       .head = head,
                       .key_head = static_cast<int>(static_cast<unsigned>(head) / static_cast<unsigned>(all.heads_per_key)),
                       .first_row = static_cast<int>(blockIdx.x) * kConfig.rows_per_block(),
                       .checkpoints_before = packed_steps_before(all, sequence)};
        for (int i = 0; i < kConfig.stages; ++i) {
            barrier(shared.loaded[i]).init(3 + 32);  // keys, queries and values, and a warp's scalars
            barrier(shared.factored[i]).init(kWarpgroup);
            barrier(shared.ready[i]).init(2 * kWarpgroup);
            barrier(shared.done[i]).init(kConfig.value_groups * 4);
        }
        publish_barriers();
    }
    constexpr int kPieces = sizeof(shared.matrices) / sizeof(uint4);
    for (int i = threadIdx.x; i < kPieces; i += kConfig.threads()) reinterpret_cast<uint4*>(shared.matrices)[i] = {};
    publish_shared();
    __syncthreads();

    const int group = __shfl_sync(0xffffffffu, threadIdx.x / kWarpgroup, 0);  // known to be the same for a whole warp
    if (group == 0) {
        leave_registers<kConfig.scores_registers()>();
        PrefillScores<kConfig>(shared, args).run();
    } else if (group < kConfig.first_value_group()) {
        leave_registers<kConfig.inverse_registers()>();
        PrefillInverse<kConfig>(shared, args).run();
    } else {
        take_registers<kConfig.value_registers()>();
        PrefillValues<kConfig>(shared, args).run();
    }
}

}  // namespace gdn_cuda::gdn
