// gdn/split_sequences: sequences as two parts each, for calls that report the state between them. A call takes first parts, and
// another one second parts, from the states that the first call leaves.
//
// A thread takes a sequence. Bound: the launch.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/split_sequences_plan.cuh>

namespace gdn_cuda::gdn {

template <SplitSequencesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) split_sequences(const __grid_constant__ SplitSequencesArgs args) {
    const int n = static_cast<int>(blockIdx.x) * kConfig.threads() + static_cast<int>(threadIdx.x);
    if (n >= args.sequences) return;
    const Span span = span_of(args.cu_seqlens, n, args.tokens);
    const bool packed = args.cu_seqlens.data != nullptr;
    const i64 start = packed ? span.start : static_cast<i64>(n) * args.tokens, length = span.length,
              first = min(max(load_index(args.offsets, n), i64{0}), length);
    args.parts[2 * n] = start;
    args.parts[2 * n + 1] = start + first;
    if (n == args.sequences - 1) args.parts[2 * n + 2] = start + length;
    args.firsts[2 * n] = args.seconds[2 * n + 1] = args.slots[n];
    args.firsts[2 * n + 1] = args.seconds[2 * n] = -1;
}

}  // namespace gdn_cuda::gdn
