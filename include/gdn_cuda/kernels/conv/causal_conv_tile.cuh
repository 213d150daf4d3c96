// conv/causal_conv_tile: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for up to 32 taps and any strides.
//
// A block has a tile of channels and tokens; its inputs and those before it are fp32 in shared memory. A thread computes 8
// consecutive tokens of a channel from a window of 8 inputs in registers, which slides by one for each tap: 2 shared-memory
// reads for 8 FMAs. If a token of the tile sees a state or not all tokens before it, the block computes the tile token by
// token.
//
// Shared memory: inputs, weights, and the sequence ids of tokens.
//
// Bound: for 5 to 8 taps memory, 4 bytes an element in bf16 and the tile's halo, which comes from L2; for 32 taps
// shared-memory reads and FMAs.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/tile.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/tile_plan.cuh>

namespace gdn_cuda::conv {

template <CausalTileConfig kConfig>
struct CausalTile {
    using T = Storage<kConfig.io>;
    using Inputs = decltype(CausalTileSharedPlan<kConfig>::x);
    static constexpr int kRun = Inputs::kRun, kTokens = kConfig.tokens(), kChannels = kConfig.channels();
    static constexpr int kReach = kConfig.reach;

    const CausalArgs& args;
    CausalTileSharedPlan<kConfig>& shared;
    CausalTilePlace place;
    CausalSequences sequences{args.sequences, place.batch};

    __device__ __forceinline__ float input(int channel, int token) const { return shared.x.at[Inputs::place(channel, token)]; }

    // The sum of a token in a mixed tile. Tokens and ids are counted from the beginning of x in shared memory.
    __device__ __forceinline__ float token_sum(int channel, int token) const {
        const i64 id = shared.ids[token], first = sequences.first_token(id);
        const bool continues = sequences.continues(id);
        const int origin = place.token - kReach;
        float z = shared.bias[channel];
#pragma unroll 1
        for (int k = 0; k < args.taps; ++k) {
            const int at = token - (args.taps - 1) + k;
            const i64 before = first - (origin + at);
            if (before > 0) {
                if (continues)
                    z = fmaf(shared.weight[k][channel], sequences.state_of(id).at(place.channel + channel, before), z);
            } else if (shared.ids[at] == id) {
                z = fmaf(shared.weight[k][channel], input(channel, at), z);
            }
        }
        return z;
    }
    __device__ __forceinline__ void by_token(int channel, int first) const {
#pragma unroll 1
        for (int i = first; i < first + kRun; ++i) {
            if (place.token + i >= args.tokens) return;
            const i64 id = shared.ids[kReach + i];
            store_one<T>(args.out, place, channel, i,
                         id < 0 ? output_without_sequence(id) : output_of(token_sum(channel, kReach + i), args.silu));
        }
    }
    __device__ __forceinline__ void whole_run(int channel, int first) const {
        float z[kRun];
        causal_sums<kRun>(
            z, shared.bias[channel], args.taps, kReach + first - (args.taps - 1),
            [&](int k) { return shared.weight[k][channel]; }, [&](int at) { return input(channel, at); });
#pragma unroll
        for (int i = 0; i < kRun; ++i) z[i] = output_of(z[i], args.silu);
        store_run<kConfig.channels_last, T>(args.out, args.vectors, place, channel, first, args.tokens, z);
    }
    __device__ __forceinline__ void run() {
        load_taps<kConfig.threads()>(args, place.channel, shared.weight, shared.bias);
        load_inputs<T, kConfig.channels_last, kConfig.threads()>(args.x, args.vectors, place, args.channels, args.tokens,
                                                                 kReach, shared.x);
        const bool mixed =
            load_ids<kConfig.threads()>(sequences, place.token - kReach, args.taps, kReach, args.tokens, shared.ids);
#pragma unroll 1
        for (int unit = static_cast<int>(threadIdx.x); unit < kChannels * kTokens / kRun; unit += kConfig.threads()) {
            const int channel = kConfig.channels_last ? unit % kChannels : unit / (kTokens / kRun);
            const int first = (kConfig.channels_last ? unit / kChannels : unit % (kTokens / kRun)) * kRun;
            if (place.channel + channel >= args.channels || place.token + first >= args.tokens) continue;
            if (mixed)
                by_token(channel, first);
            else
                whole_run(channel, first);
        }
    }
};

template <CausalTileConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) causal_conv_tile(const __grid_constant__ CausalArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    const CausalTilePlace place(args.channels, args.tokens, kConfig.channels_last, kConfig.channels(), kConfig.tokens());
    CausalTile<kConfig>{args, *reinterpret_cast<CausalTileSharedPlan<kConfig>*>(memory), place}.run();
}

}  // namespace gdn_cuda::conv
