// scan/selective_backward: the gradients of selective_scan.
//
// Forward is x_t = Ā_t x_{t−1} + (B̄u)_t and y_t = C_t x_t. The gradient of a state comes back as
//     dx_t = C_t dy_t + Ā_{t+1} dx_{t+1},
// and with it and x_{t−1} all others follow, token by token. Forward kept the state before every chunk of 64 tokens; those in
// between are computed again. A block walks the chunks of a sequence from the last to the first. In each chunk it
//     makes tiles of steps, inputs and output gradients     selective_backward_elements.cuh
//     and of B and C in shared memory, in fp32;             selective_backward_coefficients.cuh
//     walks from the state before the chunk, and keeps the states before every eight tokens;
//     from the last eight tokens to the first, walks them again with all states and decays in registers, and goes back
//     through them, four tokens at a time;                  selective_backward_walk.cuh
//     sums, over states for u, delta and z, over channels
//     for B and C;                                          selective_backward_walk_sums.cuh
//     writes the gradients of u, delta, z and delta_a.      selective_backward_elements.cuh
//
// A block has 8 to 32 channels in front of four warps. A channel's states are on a few neighbouring lanes, some on each, which
// keep poles, states and their gradients in registers (selective_backward_states.cuh). States beyond one group take further
// launches, which add to `earlier`. All sums have a fixed order; selective_backward_sums adds up those of the blocks.
//
// Bound: instructions, and shared memory half as much. Of bf16 with 16 real states, z and softplus, 35 an update of a state: 4
// to walk forward; 13 to walk again and back, which is all of the mathematics, with one exponential each; 9 around them, most
// of it for the sums over lanes and channels; 6 for the elements, 9 where units are not plain; 3 for the rest of a
// chunk. The loop over eight tokens is written to be short, as all warps together run it from the instruction cache.
#pragma once

#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/scan/selective/segment.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/coefficients.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/elements.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/recurrence.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
__device__ __forceinline__ void go_back(const BackwardBlock<kConfig>& block) {
    const BackwardStates<kConfig> states{block};
    const BackwardElements<kConfig> elements{block};
    const BackwardCoefficients<kConfig> coefficients{block};
    const BackwardSums<kConfig> sums{block};
    const BackwardWalk<kConfig> walk{block, sums};

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
        walk.back_through(own, chunk);
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
// Registers are limited for so many blocks, where shared memory has room for them.
template <SelectiveBackwardConfig kConfig>
inline constexpr int kBlocksPerMultiprocessor = [] {
    constexpr int kKilobytes = kArchitecture >= 90 && kArchitecture < 120 ? 228 : kArchitecture == 80 ? 164 : 100;
    constexpr int kFit = kKilobytes * 1024 / static_cast<int>(sizeof(SelectiveBackwardSharedPlan<kConfig>) + 1024);
    return kFit < SelectiveBackwardConfig::kMostBlocks ? kFit : SelectiveBackwardConfig::kMostBlocks;
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
    const int piece = blockIdx.z;
    const Span span = span_of_piece(args.pieces, whole, piece);
    const BackwardPlace place{
        .channel = static_cast<int>(blockIdx.x) / blocks_of_span * args.channels_per_span + inside,
        .channels = min(args.channels_per_span - inside, kConfig.channels_per_block()),
        .sequence = sequence,
        .batch = packed ? 0 : sequence,
        .piece = piece,
        .length = span.length,
        .start = span.start,
        .first_chunk = first_chunk(in, sequence) + static_cast<int>((span.start - whole.start) / kStateChunk)};
    if (threadIdx.x == 0) shared.place = place;
    __syncthreads();
    go_back(BackwardBlock<kConfig>{args, in, shared, shared.place});
}

}  // namespace gdn_cuda::scan
