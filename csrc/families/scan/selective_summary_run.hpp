// The summary of a selective scan on CUDA: the state after sequences, or the gradient of the state before them, and the decay
// over them. From the tail that matters alone, where decays are exponentials.
#pragma once

#include "selective_segments_run.hpp"
#include "selective_summary.hpp"
#include "variables.hpp"

namespace gdn_cuda::scan {

struct SelectiveSummaryResults {
    void *state = nullptr, *decay = nullptr;  // (sequences, dim, N), in A's dtype
};

// For maps forward, from u. z has no part in them.
inline SelectivePiecesArgs forward_pieces(const PreparedSelective& prepared, bool rows_are_aligned, int span) {
    SelectivePiecesArgs args{.in = prepared.inputs,
                             .io = prepared.io,
                             .input_times_delta = prepared.discretization == Discretization::mamba,
                             .along_tokens = prepared.layout == Layout::tokens,
                             .rows_are_aligned = rows_are_aligned,
                             .span = span};
    args.in.z = {}, args.in.B = with_unit_stride(args.in.B, args.in.state_size);
    args.coefficients_are_aligned = has_vectors(args.in.B, prepared.is_packed());
    return args;
}

// `grad_out`: null data for the state after sequences; otherwise the gradient of the state before them. `first`: the state
// before sequences, or the gradient of the state after them; null for zeros.
inline void run_selective_summary(const PreparedSelective& prepared, const ChannelRows& grad_out, const void* first,
                                  const SelectiveSummaryResults& results, const Target& target, const Tensor& like) {
    const SelectiveInputs& in = prepared.inputs;
    if (in.dim == 0 || in.sequences == 0) return;
    const bool along_tokens = prepared.layout == Layout::tokens, packed = prepared.is_packed(),
               reverse = grad_out.data != nullptr;
    const Coefficients& coefficients = reverse ? in.C : in.B;
    const int span = coefficients.varies ? in.dim / coefficients.groups : in.dim;
    const ChannelRows none;
    bool rows_are_aligned = along_tokens || span % 8 == 0 || span == in.dim;
    for (const ChannelRows& x : {reverse ? grad_out : in.u, in.delta, reverse ? in.z : none})
        rows_are_aligned &= x.data == nullptr || has_vectors(x, bytes_of(prepared.io), along_tokens, packed);
    SelectivePiecesArgs pieces = reverse ? reversed_pieces(prepared, grad_out, rows_are_aligned, span)
                                         : forward_pieces(prepared, rows_are_aligned, span);
    const SplitProblem problem = split_problem(prepared);
    CallMemory memory(like);
    pieces.segments = split_summary(problem, kSegmentsVariable.value());
    const i64 rows = pieces.segments.count * problem.sequences, floats = rows * problem.states * problem.parts;
    pieces.maps = {.ends = memory.floats(floats), .products = memory.floats(floats)};
    const SelectivePiecesConfig config =
        selective_pieces_config(transition_of(prepared.discretization), prepared.is_complex, true);
    if (config.skips()) pieces.steps = memory.floats(rows * in.dim, true);
    SelectivePieces::run(config, pieces, target);
    SelectiveSummary::run(prepared.is_complex,
                          {.segments = pieces.segments,
                           .maps = pieces.maps,
                           .first = first,
                           .state = results.state,
                           .decay = results.decay,
                           .cu_seqlens = in.cu_seqlens,
                           .sequences = in.sequences,
                           .length = in.length,
                           .states = problem.states,
                           .reverse = reverse},
                          target);
}

}  // namespace gdn_cuda::scan
