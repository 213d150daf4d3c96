// conv/split_columns: conv/split_conv for 4 taps, where channels are neighbours in memory and heads of q and k are some
// lanes of a warp.
//
// A lane has 4 or 8 channels, of which the next 8 rows are in flight (causal_columns.cuh). The sum of squares of a head goes
// through shuffles, a few for each token. A warp has the channels of 32 lanes, and a block four segments that follow each
// other.
//
// Shared memory: weights and bias, which the block loads once.
//
// Bound: memory, 4 bytes an element for bf16, as for the convolution alone; the W - 1 rows in front of a segment come from the
// L2 cache.
#pragma once

#include <gdn_cuda/kernels/conv/causal_columns.cuh>
#include <gdn_cuda/kernels/conv/inverse_root.cuh>
#include <gdn_cuda/kernels/conv/split_plan.cuh>

namespace gdn_cuda::conv {

// Where a lane's channels go, and the norms of their heads.
template <SplitColumnsConfig kConfig>
struct SplitOutputs {
    using T = Storage<kConfig.io>;
    static constexpr int kVector = kConfig.lane_channels;
    using Items = Vector<T, kVector, true>;

    const SplitArgs& args;
    int batch, channel;  // the lane's first

    // Channels of q, and the lane's place behind those of the tensors before its own: 0, 1, 2 for q, k, v.
    int keys = args.heads.key_heads * args.heads.dk;
    int kind = min(channel / max(keys, 1), 2);
    bool normalised = kind < 2 && keys > 0 && args.heads.normalised;
    // Any lane's, as shuffles take all of them.
    bool any_normalised = __any_sync(kAllLanes, normalised);
    i64 step = kind < 2 && keys > 0 ? keys : args.heads.value_heads* args.heads.dv;  // of a token in the lane's tensor
    T* out = static_cast<T*>(args.out[keys > 0 ? kind : 2]) + batch * step * args.conv.tokens + channel - kind * keys;

    // The factor of a token's outputs, from the lane's squares. All lanes take part.
    __device__ __forceinline__ float inverse_norm(float squares) const {
        for (int other = args.heads.dk / kVector / 2; other > 0; other /= 2)
            squares += __shfl_xor_sync(kAllLanes, squares, other);
        return normalised ? inverse_root(squares + args.heads.epsilon) : 1.f;
    }
    __device__ __forceinline__ void write(int token, bool is_written, const float (&z)[kVector]) const {
        float y[kVector], inverse = 1.f;
#pragma unroll
        for (int e = 0; e < kVector; ++e) y[e] = silu(z[e]);
        if (any_normalised) {
            float squares = 0.f;
#pragma unroll
            for (int e = 0; e < kVector; ++e) squares = fmaf(y[e], y[e], squares);
            inverse = inverse_norm(squares);
        }
        Items items;
#pragma unroll
        for (int e = 0; e < kVector; ++e) items.set(e, y[e] * inverse);
        if (is_written) items.store(out + token * step);
    }
    __device__ __forceinline__ void fill(int token, float number) const {
        Items items;
        items.fill(number);
        items.store(out + token * step);
    }
};

template <SplitColumnsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks()) split_columns(const __grid_constant__ SplitArgs args) {
    __shared__ CausalSharedTaps<kConfig> shared;
    run_columns<kConfig>(args.conv, shared,
                         [&](int batch, int channel) { return SplitOutputs<kConfig>{args, batch, channel}; });
}

}  // namespace gdn_cuda::conv
