// Mamba-2's step δ of a head and token, from what the layer gives.
#pragma once

#include <gdn_cuda/kernels/common/numeric.cuh>
#include <gdn_cuda/kernels/common/raw_element.cuh>
#include <gdn_cuda/kernels/ssd/steps_plan.cuh>

namespace gdn_cuda::ssd {

template <class Args>
__device__ __forceinline__ float bias_of(const Args& args, int head) {
    return args.dt_bias.values.data == nullptr ? 0.f : load_float(args.dt_bias.values, head * args.dt_bias.head);
}
// clamp(softplus(x)), softplus if asked. NaN stays.
template <class Args>
__device__ __forceinline__ float step_size(const Args& args, float x) {
    return at_most(at_least(args.softplus ? softplus(x) : x, args.lowest), args.highest);
}

}  // namespace gdn_cuda::ssd
