// scan/selective_backward: the gradients of selective_scan.
//
// Forward is x_t = Ā_t x_{t−1} + (B̄u)_t and y_t = C_t x_t. The gradient of a state,
//     dx_t = C_t dy_t + Ā_{t+1} dx_{t+1},
// is computed from the last token to the first; dx_t, x_{t−1} and x_t give all other gradients of token t. Forward stored the
// state before every chunk of 64 tokens; the states between are recomputed. A block iterates over the chunks of a sequence from
// the last to the first. In each chunk it
//     makes tiles of steps, inputs and output gradients          selective_backward/elements.cuh
//     and of B and C in shared memory, in fp32;                  selective_backward/coefficients.cuh
//     recomputes the states before every eight tokens;
//     from the last eight tokens to the first, recomputes all
//     states and decays into registers, and computes gradients
//     backwards, four tokens at a time;                          selective_backward/recurrence.cuh
//     sums over states (u, delta, z) and channels (B, C);        selective_backward/sums.cuh
//     writes the gradients of u, delta, z and delta_a.           selective_backward/elements.cuh
//
// A block has 8 to 32 channels and four warps. A channel's states are spread over 4 to 16 lanes, which keep poles, states and
// their gradients in registers (selective_backward/states.cuh). More states than the lanes hold take further launches, which
// add to `earlier`. All sums have a fixed order; scan/selective_backward_sums adds up those of the blocks.
//
// Bound: instruction issue; shared memory is half as busy. For bf16, 16 real states, z and softplus, 35 instructions for each
// state and token: 4 for the forward pass; 13 for the second forward and the backward pass, which is all of the mathematics,
// with one exponential each; 9 around these, mostly the sums over lanes and channels; 6 for the elements (9 in tiles that are
// not plain); 3 for the rest of a chunk. The loop over eight tokens is kept short, so that it fits the instruction cache, which
// all warps share. docs/benchmarks/scan.md has measured times.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/coefficients.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/elements.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/recurrence.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
__device__ __forceinline__ void run_backward(const BackwardBlock<kConfig>& block) {
    const BackwardStates<kConfig> states{block};
    const BackwardElements<kConfig> elements{block};
    const BackwardCoefficients<kConfig> coefficients{block};
    const BackwardSums<kConfig> sums{block};
    const BackwardRecurrence<kConfig> recurrence{block, sums};

    typename BackwardStates<kConfig>::Own own;
    states.begin(own);
    elements.begin();
    sums.begin();
    if (threadIdx.x == 0) {
        elements.keep_rows();
        coefficients.keep_rows();
    }
    __syncthreads();

#pragma unroll 1
    for (int chunk = (block.place.length + kStateChunk - 1) / kStateChunk - 1; chunk >= 0; --chunk) {
        const int first = chunk * kStateChunk;
        int tokens = min(kStateChunk, block.left(chunk));
        typename BackwardCoefficients<kConfig>::InFlight loaded;
        coefficients.load(loaded, first, tokens);
        states.load(own, block.place.first_chunk + chunk);
        elements.make(first, tokens);
        coefficients.make(loaded, first, tokens);
        __syncthreads();
        if (chunk > 0) elements.prefetch(first - kStateChunk);
        recurrence.run_chunk(own, chunk);
        __syncthreads();
        tokens = min(kStateChunk, block.left(chunk));
        if (!block.args.first_pass || !block.args.last_pass) {
            elements.add_earlier(first, tokens);
            __syncthreads();
        }
        if (!block.args.last_pass) continue;
        elements.finish(first, tokens);
    }
    states.finish(own);
    if (block.args.last_pass) elements.finish_sums();
}

#ifdef __CUDA_ARCH__
inline constexpr int kArchitecture = __CUDA_ARCH__ / 10;
#else
inline constexpr int kArchitecture = 90;
#endif
// Blocks an SM for which registers are limited: most_blocks(), or as many as fit in shared memory.
template <SelectiveBackwardConfig kConfig>
inline constexpr int kBlocksPerMultiprocessor = [] {
    constexpr int kKilobytes = kArchitecture >= 90 && kArchitecture < 120 ? 228 : kArchitecture == 80 ? 164 : 100;
    constexpr int kFit = kKilobytes * 1024 / static_cast<int>(sizeof(SelectiveBackwardSharedPlan<kConfig>) + 1024);
    return kFit < kConfig.most_blocks() ? kFit : kConfig.most_blocks();
}();

template <SelectiveBackwardConfig kConfig>
__global__ void __launch_bounds__(SelectiveBackwardConfig::kThreads, kBlocksPerMultiprocessor<kConfig>)
    selective_backward(const __grid_constant__ SelectiveBackwardArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SelectiveBackwardSharedPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    const SelectiveInputs& in = args.in;
    const bool packed = in.cu_seqlens.data != nullptr;
    const int sequence = args.first_sequence + blockIdx.y;
    const int blocks_of_span = static_cast<int>(ceil_div(args.channels_per_span, kConfig.channels_per_block()));
    const int inside = blockIdx.x % blocks_of_span * kConfig.channels_per_block();
    const Span whole = span_of(in.cu_seqlens, sequence, in.length);
    const int segment = args.turns.taken() ? gridDim.z - 1 - blockIdx.z : blockIdx.z;
    const Span span = segment_span(args.segments, whole, segment);
    const BackwardPlace place{
        .channel = static_cast<int>(blockIdx.x) / blocks_of_span * args.channels_per_span + inside,
        .channels = min(args.channels_per_span - inside, kConfig.channels_per_block()),
        .sequence = sequence,
        .batch = packed ? 0 : sequence,
        .segment = segment,
        .length = span.length,
        .start = span.start,
        .first_chunk = first_chunk(in, sequence) + static_cast<int>((span.start - whole.start) / kStateChunk)};
    if (threadIdx.x == 0) shared.place = place;
    __syncthreads();
    run_backward(BackwardBlock<kConfig>{args, in, shared, shared.place});
}

}  // namespace gdn_cuda::scan
