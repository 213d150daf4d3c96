// layers/split_backward: the gradient dy of the convolution's output y, from the gradients dn of q, k and v. For v, dy = dn.
// For normalised q and k, dy = (dn - n sum(n dn)) / norm with n = y / norm and norm = sqrt(sum(y^2) + eps). If a head has one
// channel, dy = eps dn / norm^3, since rounding would cancel the difference.
//
// A warp has one head of one token and reads it twice, the second time from the L1 cache.
//
// Shared memory: none.
//
// Bound: memory, 6 bytes per element for bf16.
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/layers/split/plan.cuh>

namespace gdn_cuda::layers {

template <SplitConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) split_backward(const __grid_constant__ SplitBackwardArgs args) {
    using T = Storage<kConfig.io>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const i64 unit = static_cast<i64>(blockIdx.x) * (kConfig.threads / 32) + threadIdx.x / 32;
    const i64 row = unit / args.heads.heads();
    if (row >= i64{args.batches} * args.tokens) return;
    const int batch = static_cast<int>(row / args.tokens), token = static_cast<int>(row % args.tokens);
    const SplitHead head(args.heads, static_cast<int>(unit % args.heads.heads()));
    const T* const y = static_cast<const T*>(args.y.data) + batch * args.y.batch + token * args.y.token;
    const T* const grad = static_cast<const T*>(args.grads[head.output]) + head.offset(args.heads, row);
    T* const dy = static_cast<T*>(args.dy) + row * args.heads.channels() + head.channel;
    const auto input = [&](int c) { return to_float(y[(head.channel + c) * args.y.channel]); };

    // 1 / norm; sum(n dn) / norm; the factor of dn
    float inverse = 1.f, along = 0.f, left = 1.f;
    const bool normalised = head.is_normalised(args.heads);
    if (normalised) {
        float squares = 0.f, products = 0.f;
#pragma unroll 4
        for (int c = lane; c < head.size; c += 32) {
            squares = fmaf(input(c), input(c), squares);
            products = fmaf(input(c), to_float(grad[c]), products);
        }
        inverse = inverse_root(group_sum<32>(squares) + args.heads.epsilon);
        along = group_sum<32>(products) * inverse * inverse;
        if (head.size == 1) {
            left = args.heads.epsilon * inverse * inverse;
            along *= 0.f;  // NaN where y is not finite
        }
    }
#pragma unroll 4
    for (int c = lane; c < head.size; c += 32) {
        const float dn = to_float(grad[c]);
        dy[c] = from_float<T>(normalised ? inverse * fmaf(-along, input(c), left * dn) : dn);
    }
}

}  // namespace gdn_cuda::layers
