// common/uncovered_zeros: zeros for tokens that belong to no packed sequence, in several tensors at once. The kernels that
// compute these tensors write the others.
//
// A block has 128 tokens and looks at all sequences: a thread has 32 tokens and every 32nd sequence. Where all tokens are in
// sequences, the usual case, it ends there. Otherwise each warp writes the zeros of one token after another.
//
// Bound: in the usual case latency, two loads of offsets for every 32 sequences. Where 8192 tokens of three gradients are
// cleared, 0.12 ms on an H200 (benchmarks/parallel_times.py --profile).
#pragma once

#include <gdn_cuda/kernels/common/uncovered_zeros_plan.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>

namespace gdn_cuda::common {

// Bits of the 32 tokens from `first` on that are before `end`.
__device__ __forceinline__ unsigned tokens_before(i64 end, i64 first) {
    return end - first >= 32 ? ~0u : end <= first ? 0u : (1u << static_cast<int>(end - first)) - 1;
}

// By a warp.
__device__ __forceinline__ void clear_token(const TokenRows& rows, i64 token, int lane) {
    char* const to = static_cast<char*>(rows.data) + token * rows.token;
    const bool vectors =
        (static_cast<i64>(reinterpret_cast<unsigned long long>(rows.data)) | rows.token | rows.row | rows.bytes) % 16 == 0;
    const int unit = vectors ? 16 : 2, row_units = rows.bytes / unit;
#pragma unroll 1
    for (int j = lane; j < rows.rows * row_units; j += 32) {
        char* const at = to + j / row_units * rows.row + j % row_units * unit;
        if (vectors)
            *reinterpret_cast<uint4*>(at) = {};
        else
            *reinterpret_cast<unsigned short*>(at) = 0;
    }
}

template <UncoveredZerosConfig kConfig>
__global__ void __launch_bounds__(UncoveredZerosConfig::kThreads)
    uncovered_zeros(const __grid_constant__ UncoveredZerosArgs args) {
    constexpr int kParts = UncoveredZerosConfig::kThreads / kConfig.words();
    static_assert(kParts * kConfig.words() == UncoveredZerosConfig::kThreads);
    __shared__ unsigned covered[kParts][kConfig.words()];
    const int thread = threadIdx.x, word = thread % kConfig.words(), part = thread / kConfig.words();
    const i64 first = static_cast<i64>(blockIdx.x) * kConfig.tokens, own = first + 32 * word;
    unsigned bits = ~tokens_before(args.tokens, own);  // past the end
    for (int sequence = part; sequence < args.sequences; sequence += kParts) {
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        bits |= tokens_before(span.start + span.length, own) & ~tokens_before(span.start, own);
    }
    covered[part][word] = bits;
    __syncthreads();
    bits = 0;
#pragma unroll
    for (int i = 0; i < kParts; ++i) bits |= covered[i][word];
    if (!__syncthreads_or(bits != ~0u)) return;
    if (part == 0) covered[0][word] = bits;
    __syncthreads();
    const int lane = thread % 32;
#pragma unroll 1
    for (int i = thread / 32; i < kConfig.tokens; i += UncoveredZerosConfig::kThreads / 32) {
        if (covered[0][i / 32] >> i % 32 & 1) continue;
#pragma unroll 1
        for (int tensor = 0; tensor < args.count; ++tensor) clear_token(args.tensors[tensor], first + i, lane);
    }
}

}  // namespace gdn_cuda::common
