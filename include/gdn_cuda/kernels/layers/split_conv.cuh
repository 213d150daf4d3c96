// layers/split_conv: a causal convolution with silu whose channels are the heads of q, k and v, each written to a tensor of its
// own; q and k are divided by sqrt(sum of squares + eps). For any number of taps, head size and strides.
//
// A warp has one head of one token. It sums the taps of each channel from global memory, twice if the head is normalised, so
// that heads of any size work without registers for them and nothing is rounded in between. Inputs that adjacent tokens have
// already loaded come from the caches.
//
// Shared memory: none.
//
// Bound: loads from the L1 and L2 caches, one per tap and channel.
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>
#include <gdn_cuda/kernels/layers/split/gates.cuh>
#include <gdn_cuda/kernels/layers/split/plan.cuh>

namespace gdn_cuda::layers {

template <SplitConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) split_conv(const __grid_constant__ SplitArgs args) {
    if (wrote_gates<kConfig.threads>(args)) return;
    using T = Storage<kConfig.io>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const i64 unit = static_cast<i64>(blockIdx.x) * (kConfig.threads / 32) + threadIdx.x / 32;
    const i64 row = unit / args.heads.heads();
    if (row >= i64{args.conv.batches} * args.conv.tokens) return;
    const int batch = static_cast<int>(row / args.conv.tokens), token = static_cast<int>(row % args.conv.tokens);
    const SplitHead head(args.heads, static_cast<int>(unit % args.heads.heads()));
    const conv::CausalSequences sequences{args.conv.sequences, batch};
    const i64 id = sequences.id_of(token);
    const auto output = [&](int c) { return conv::output_of_token<T>(args.conv, sequences, head.channel + c, token, id); };

    float inverse = 1.f;
    if (id >= 0 && head.is_normalised(args.heads)) {
        float squares = 0.f;
#pragma unroll 1
        for (int c = lane; c < head.size; c += 32) {
            const float y = output(c);
            squares = fmaf(y, y, squares);
        }
        inverse = inverse_root(group_sum<32>(squares) + args.heads.epsilon);
    }
    T* const out = static_cast<T*>(args.out[head.output]) + head.offset(args.heads, row);
#pragma unroll 1
    for (int c = lane; c < head.size; c += 32) out[c] = from_float<T>(output(c) * inverse);
}

}  // namespace gdn_cuda::layers
