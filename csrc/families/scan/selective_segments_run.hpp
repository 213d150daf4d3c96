// What selective_scan and its gradients launch before their kernels where they cut sequences into pieces.
#pragma once

#include "../../jit/env.hpp"
#include "call_memory.hpp"
#include "selective_pieces.hpp"
#include "selective_prepare.hpp"
#include "selective_split.hpp"
#include "selective_starts.hpp"

namespace gdn_cuda::scan {

inline SplitProblem split_problem(const PreparedSelective& prepared) {
    const SelectiveInputs& in = prepared.inputs;
    return {.sequences = in.sequences,
            .tokens = in.length,
            .packed = prepared.is_packed(),
            .states = i64{in.dim} * in.state_size,
            .parts = prepared.is_complex ? 2 : 1};
}

// The states before each piece, (pieces, sequences, dim, N), or in reverse the gradients of those behind each; `first` itself
// where sequences are not cut. The other arguments are the kernel's, but for what is made here.
inline const void* states_before_segments(const PreparedSelective& prepared, const void* first, SelectivePiecesArgs args,
                                          CallMemory& memory, const Target& target) {
    if (args.segments.count == 1) return first;
    const SplitProblem problem = split_problem(prepared);
    const i64 numbers = args.segments.count * problem.sequences * problem.states * problem.parts;
    args.maps = {.ends = memory.floats(numbers), .products = memory.floats(numbers)};
    SelectivePieces::run(transition_of(prepared.discretization), prepared.is_complex, args, target);
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
