// conv/causal_conv_channels_last: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for 3 or 4 taps, where
// channels are neighbours in memory.
//
// A lane has four channels and walks over a segment of tokens (causal_columns.cuh), with the next 8 rows in flight. A warp has
// 128 neighbouring channels, and a block four segments that follow each other. First each token is taken as if its row were one
// sequence that begins with zeros; then those that see a state, or not all of the tokens before them, are written again, one
// by one.
//
// Shared memory: weights and bias, which the block loads once.
//
// Bound: memory, 4 bytes an element for bf16; the W - 1 rows in front of a segment come from the L2 cache. 16 warps of an SM
// have 64 KB in flight.
#pragma once

#include <gdn_cuda/kernels/conv/causal_columns.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.sequences           ? 4
                                                     : bytes_of(kConfig.io) == 4 ? 4
                                                                                 : 6)
    causal_conv_channels_last(const __grid_constant__ CausalArgs args) {
    using T = Storage<kConfig.io>;
    constexpr int kVector = kConfig.lane_channels();
    __shared__ CausalSharedTaps<kConfig.taps, kConfig.channels()> taps;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    const CausalPlace place(args, kConfig.channels(), kConfig.threads() / 32, thread / 32);
    const int first_channel = place.group * kConfig.channels(), channel = first_channel + lane * kVector;
    const int token = static_cast<int>(place.token);

    CausalColumnWalk<T, kConfig.taps, kVector, kConfig.rows()> columns{
        .x = static_cast<const T*>(args.x.data) + place.batch * args.x.batch + channel,
        .step = args.x.token,
        .exists = channel < args.channels};
    if (place.token < args.tokens) columns.load_first(token, place.last);
    taps.load(args, first_channel, thread, kConfig.threads());
    __syncthreads();
    if (place.token >= args.tokens) return;

    T* const out = static_cast<T*>(args.out.data) + place.batch * args.out.batch + channel;
    columns.walk(taps, lane, token, place.last, [&](int at, const float(&z)[kVector]) {
        Vector<T, kVector, true> y;
#pragma unroll
        for (int e = 0; e < kVector; ++e) y.set(e, output_of(z[e], args.silu));
        if (at < place.last && columns.exists) y.store(out + at * args.out.token);
    });
    if constexpr (kConfig.sequences) {
        const CausalSequences sequences{args.sequences, place.batch};
        mend_columns(sequences, kConfig.taps, lane, token, place.last, [&](int at, i64 id) {
#pragma unroll 1
            for (int e = 0; e < kVector && columns.exists; ++e)
                out[at * args.out.token + e] = from_float<T>(output_of_token<T>(args, sequences, channel + e, at, id));
        });
    }
}

}  // namespace gdn_cuda::conv
