// layers/split_columns: layers/split_conv for 4 taps, contiguous channels, and heads of q and k that fit a warp.
//
// A lane has 4 or 8 channels, with loads of the next 4 to 8 rows in flight (causal_conv/channels_last_rows.cuh). Shuffles
// sum the squares of a head; warps with channels of v alone run a loop without them. If rows are single sequences, the first
// segment's warps, which alone read a row's state, replace it.
//
// Bound: memory, 4 bytes per element for bf16, as for the convolution alone; the W - 1 rows before a segment come from the L2
// cache.
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/channels_last_rows.cuh>
#include <gdn_cuda/kernels/layers/split/gates.cuh>
#include <gdn_cuda/kernels/layers/split/plan.cuh>

namespace gdn_cuda::layers {

// Destination of a lane's channels.
struct SplitLane {
    int keys, output;  // channels of q; 0, 1, 2 for q, k, v
    int step;          // stride of tokens in the lane's tensor, in elements
    bool normalised;   // whether the lane's head is normalised

    __device__ __forceinline__ SplitLane(const SplitHeads& heads, int channel)
        : keys(heads.key_heads * heads.dk),
          output(keys > 0 ? min(channel / keys, 2) : 2),
          step(output < 2 ? keys : heads.value_heads * heads.dv),
          normalised(output < 2 && heads.normalised) {}
    template <class T>
    __device__ __forceinline__ T* out(const SplitArgs& args, int batch, int channel) const {
        return static_cast<T*>(args.out[output]) + i64{batch} * args.conv.tokens * step + channel - output * keys;
    }
};

// kNormalised: some lanes have heads to normalise.
template <SplitColumnsConfig kConfig, bool kNormalised>
struct SplitOutputs {
    using T = Storage<kConfig.io>;
    static constexpr int kVector = kConfig.lane_channels;
    using Elements = Vector<T, kVector, true>;

    const conv::CausalArgs& args;
    const SplitHeads& heads;
    int channel;  // the lane's first
    SplitLane lane;
    T* to;

    // Factor of a token's outputs, from the lane's sum of squares. Called by all lanes of the warp.
    __device__ __forceinline__ float inverse_norm(float squares) const {
        if constexpr (kConfig.head_lanes > 0) {
            squares = group_sum<kConfig.head_lanes>(squares);
        } else {
            for (int other = heads.dk / kVector / 2; other > 0; other /= 2)
                squares += __shfl_xor_sync(conv::kAllLanes, squares, other);
        }
        return lane.normalised ? inverse_root(squares + heads.epsilon) : 1.f;
    }
    __device__ __forceinline__ void skip(int tokens) { to += i64{tokens} * lane.step; }
    __device__ __forceinline__ void write(bool is_written, const float (&z)[kVector]) {
        float y[kVector];
#pragma unroll
        for (int e = 0; e < kVector; ++e) y[e] = silu(z[e]);
        store(is_written, y);
    }
    __device__ __forceinline__ void write_token(const conv::CausalSequences& sequences, int token, i64 id) {
        const bool exists = channel < args.channels;
        float y[kVector] = {};
#pragma unroll 1
        for (int c = 0; c < kVector; ++c) {  // not unrolled, to save registers
            const float output = exists ? conv::output_of_token<T>(args, sequences, channel + c, token, id) : 0.f;
#pragma unroll
            for (int e = 0; e < kVector; ++e)
                if (e == c) y[e] = output;
        }
        store(exists, y);
    }
    __device__ __forceinline__ void store(bool is_written, float (&y)[kVector]) {
        if constexpr (kNormalised) {
            float squares = 0.f;
#pragma unroll
            for (int e = 0; e < kVector; ++e) squares = fmaf(y[e], y[e], squares);
            const float inverse = inverse_norm(squares);
#pragma unroll
            for (int e = 0; e < kVector; ++e) y[e] *= inverse;
        }
        Elements elements;
#pragma unroll
        for (int e = 0; e < kVector; ++e) elements.set(e, y[e]);
        if (is_written) elements.store(to);
        to += lane.step;
    }
};

template <SplitColumnsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks()) split_columns(const __grid_constant__ SplitArgs args) {
    if (wrote_gates<kConfig.threads()>(args)) return;
    conv::CausalColumns<kConfig> columns(args.conv);
    if (!columns.has_tokens()) return;
    columns.load();
    const SplitLane lane(args.heads, columns.channel);
    auto* const out = lane.out<Storage<kConfig.io>>(args, columns.batch, columns.channel);
    if (__any_sync(conv::kAllLanes, lane.normalised))
        columns.run(SplitOutputs<kConfig, true>{args.conv, args.heads, columns.channel, lane, out});
    else
        columns.run(SplitOutputs<kConfig, false>{args.conv, args.heads, columns.channel, lane, out});
    if constexpr (kConfig.sequences)
        if (args.writes_states) columns.write_final_state(args.conv, opaque(threadIdx.x));
}

}  // namespace gdn_cuda::layers
