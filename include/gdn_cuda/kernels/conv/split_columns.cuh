// conv/split_columns: conv/split_conv for 4 taps, where channels are neighbours in memory and heads of q and k are some
// lanes of a warp.
//
// A lane has 4 or 8 channels and walks over a segment of tokens (causal_columns.cuh), with the next 8 rows in flight. The sum
// of squares of a head goes through shuffles, a few for each token. A warp has the channels of 32
// lanes, and a block four segments that follow each other. First each token is taken as if its row were one sequence that
// begins with zeros; then those that see a state, or not all of the tokens before them, are written again, one by one.
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

    const SplitArgs& args;
    int batch, channel;  // the lane's first
    bool exists = channel < args.conv.channels;

    // Channels of q, and the lane's place behind those of the tensors before its own: 0, 1, 2 for q, k, v.
    int keys = args.heads.key_heads * args.heads.dk;
    int kind = min(channel / max(keys, 1), 2);
    bool normalised = kind < 2 && keys > 0 && args.heads.normalised;
    // Any lane's, as shuffles take all of them.
    bool any_normalised = __any_sync(0xffffffffu, normalised);
    i64 step = kind < 2 && keys > 0 ? keys : args.heads.value_heads* args.heads.dv;  // of a token in the lane's tensor
    T* out = static_cast<T*>(args.out[keys > 0 ? kind : 2]) + batch * step * args.conv.tokens + channel - kind * keys;

    // The factor of a token's outputs, from the lane's squares. All lanes take part.
    __device__ __forceinline__ float inverse_norm(float squares) const {
        for (int other = args.heads.dk / kVector / 2; other > 0; other /= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, other);
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
        Vector<T, kVector, true> items;
#pragma unroll
        for (int e = 0; e < kVector; ++e) items.set(e, y[e] * inverse);
        if (is_written && exists) items.store(out + token * step);
    }
    // Computes outputs twice: registers are for the walk.
    __device__ __forceinline__ void write_alone(const CausalSequences& sequences, int token, i64 id) const {
        const int count = exists ? kVector : 0;
        float inverse = 1.f;
        if (any_normalised && id >= 0) {
            float squares = 0.f;
#pragma unroll 1
            for (int e = 0; e < count; ++e) {
                const float y = output_of_token<T>(args.conv, sequences, channel + e, token, id);
                squares = fmaf(y, y, squares);
            }
            inverse = inverse_norm(squares);
        }
#pragma unroll 1
        for (int e = 0; e < count; ++e)
            out[token * step + e] = from_float<T>(output_of_token<T>(args.conv, sequences, channel + e, token, id) * inverse);
    }
};

template <SplitColumnsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks()) split_columns(const __grid_constant__ SplitArgs args) {
    using T = Storage<kConfig.io>;
    __shared__ CausalSharedTaps<kConfig.taps, kConfig.channels()> taps;
    const CausalArgs& conv = args.conv;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const CausalPlace place(conv, kConfig.channels(), kConfig.threads() / 32, thread / 32);
    const int first_channel = place.group * kConfig.channels(), channel = first_channel + lane * kConfig.lane_channels;
    const int token = static_cast<int>(place.token);

    const SplitOutputs<kConfig> outputs{args, place.batch, channel};
    CausalColumnWalk<T, kConfig.taps, kConfig.lane_channels, kConfig.rows()> columns{
        .x = static_cast<const T*>(conv.x.data) + place.batch * conv.x.batch + channel,
        .step = conv.x.token,
        .exists = outputs.exists};
    if (place.token < conv.tokens) columns.load_first(token, place.last);
    taps.load(conv, first_channel, thread, kConfig.threads());
    __syncthreads();
    if (place.token >= conv.tokens) return;
    columns.walk(taps, lane, token, place.last,
                 [&](int at, const float(&z)[kConfig.lane_channels]) { outputs.write(at, at < place.last, z); });
    if constexpr (kConfig.sequences) {
        const CausalSequences sequences{conv.sequences, place.batch};
        mend_columns(sequences, kConfig.taps, lane, token, place.last,
                     [&](int at, i64 id) { outputs.write_alone(sequences, at, id); });
    }
}

}  // namespace gdn_cuda::conv
