// Launches before scan/selective_forward and scan/selective_backward, if these split sequences into segments, and what they
// read.
#pragma once

#include "../../jit/env.hpp"
#include "call_memory.hpp"
#include "selective_pieces.hpp"
#include "selective_prepare.hpp"
#include "selective_split.hpp"
#include "selective_starts.hpp"
#include "selective_vectors.hpp"

namespace gdn_cuda::scan {

inline SplitProblem split_problem(const PreparedSelective& prepared) {
    const SelectiveInputs& in = prepared.inputs;
    return {.sequences = in.sequences,
            .tokens = in.length,
            .packed = prepared.is_packed(),
            .states = i64{in.dim} * in.state_size,
            .parts = prepared.is_complex ? 2 : 1};
}

// For maps in reverse, from gradients of `out`. `rows_are_aligned`: of all tensors of u's shape.
inline SelectivePiecesArgs reversed_pieces(const PreparedSelective& prepared, const ChannelRows& grad_out,
                                           bool rows_are_aligned, int span) {
    const SelectiveInputs& in = prepared.inputs;
    SelectivePiecesArgs args{.in = in,
                             .reverse = true,
                             .io = prepared.io,
                             .input_times_delta = false,
                             .along_tokens = prepared.layout == Layout::tokens,
                             .rows_are_aligned = rows_are_aligned,
                             .coefficients_are_aligned = has_vectors(in.C, prepared.is_packed()),
                             .span = span};
    args.in.u = grad_out, args.in.B = with_unit_stride(in.C, in.state_size);
    if (prepared.discretization == Discretization::rglru && !in.B.varies) args.gain = in.B;
    return args;
}

// Returns the states before each segment, (segments, sequences, dim, N), or in reverse the gradients of the states after each;
// `first` itself if sequences are not split. `args`: scan/selective_pieces's, without the maps, which are allocated here.
inline const void* states_before_segments(const PreparedSelective& prepared, const void* first, SelectivePiecesArgs args,
                                          CallMemory& memory, const Target& target) {
    if (args.segments.count == 1) return first;
    const SplitProblem problem = split_problem(prepared);
    const i64 floats = args.segments.count * problem.sequences * problem.states * problem.parts;
    args.maps = {.ends = memory.floats(floats), .products = memory.floats(floats)};
    SelectivePieces::run(selective_pieces_config(transition_of(prepared.discretization), prepared.is_complex, false), args,
                         target);
    SelectiveStarts::run(prepared.is_complex,
                         {.segments = args.segments,
                          .maps = args.maps,
                          .first = first,
                          .cu_seqlens = args.in.cu_seqlens,
                          .sequences = args.in.sequences,
                          .length = args.in.length,
                          .states = problem.states,
                          .reverse = args.reverse},
                         target);
    return args.maps.ends;
}

}  // namespace gdn_cuda::scan
