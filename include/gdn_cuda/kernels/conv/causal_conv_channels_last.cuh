// conv/causal_conv_channels_last: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for few taps, channels
// contiguous in memory.
//
// A lane owns four contiguous channels and prefetches 8 rows (causal_conv/channels_last_rows.cuh); a warp covers 128
// channels.
//
// Bound: memory, 4 bytes an element in bf16; the W - 1 rows before a segment come from L2. 24 warps of an SM have 48 KB of
// bf16 in flight.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/channels_last_rows.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalOutputs {
    using T = Storage<kConfig.io>;
    static constexpr int kVector = kConfig.lane_channels();
    using Items = Vector<T, kVector, true>;

    const CausalArgs& args;
    int channel;  // the lane's first
    T* to;

    __device__ __forceinline__ void skip(int tokens) { to += tokens * args.out.token; }
    __device__ __forceinline__ void write(bool is_written, const float (&z)[kVector]) {
        Items y;
#pragma unroll
        for (int e = 0; e < kVector; ++e) y.set(e, output_of(z[e], args.silu));
        if (is_written) y.store(to);
        to += args.out.token;
    }
    __device__ __forceinline__ void write_token(const CausalSequences& sequences, int token, i64 id) {
#pragma unroll 1
        for (int e = 0; e < (channel < args.channels ? kVector : 0); ++e)
            to[e] = from_float<T>(output_of_token<T>(args, sequences, channel + e, token, id));
        to += args.out.token;
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.column_blocks())
    causal_conv_channels_last(const __grid_constant__ CausalArgs args) {
    using Outputs = CausalOutputs<kConfig>;
    CausalColumns<kConfig> columns(args);
    if (!columns.has_tokens()) return;
    columns.load();
    columns.run(Outputs{args, columns.channel,
                        static_cast<typename Outputs::T*>(args.out.data) + columns.batch * args.out.batch + columns.channel});
}

}  // namespace gdn_cuda::conv
