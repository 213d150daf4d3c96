// What kernels of a causal convolution share in which channels are neighbours in memory.
//
// A lane has some neighbouring channels and walks over a segment of tokens with the last W - 1 inputs in registers. The next
// rows are in flight: a row's registers take the row kRows behind it as soon as it is used. Tokens are the same for all lanes
// of a warp, so what happens at the ends of sequences does not diverge.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_common.cuh>

namespace gdn_cuda::conv {

// In shared memory: weights and bias of a block's channels.
template <int kTaps, int kChannels>
struct CausalSharedTaps {
    float weight[kTaps][kChannels];
    float bias[kChannels];

    __device__ __forceinline__ void load(const CausalArgs& args, int first_channel, int thread, int threads) {
        for (int i = thread; i < kChannels * (kTaps + 1); i += threads) {
            const int c = i / (kTaps + 1), k = i % (kTaps + 1), of = first_channel + c;
            const bool exists = of < args.channels;
            if (k < kTaps)
                weight[k][c] = exists ? load_number(args.weight, of * args.weight_channel + k * args.weight_tap) : 0.f;
            else
                bias[c] = exists && args.bias.data != nullptr ? load_number(args.bias, of * args.bias_channel) : 0.f;
        }
    }
};

// The segments of a grid: `groups` of channels side by side, then `segments` blocks of tokens, then batches.
struct CausalPlace {
    int batch, group;
    i64 token;  // first
    int last;   // behind the last token

    __device__ __forceinline__ CausalPlace(const CausalArgs& args, int channels, int warps, int warp) {
        const int groups = static_cast<int>(ceil_div(args.channels, channels));
        const int segments = static_cast<int>(ceil_div(args.tokens, i64{args.segment} * warps));
        const int block = static_cast<int>(blockIdx.x), in_row = block % (groups * segments);
        batch = block / (groups * segments);
        group = in_row % groups;
        token = (static_cast<i64>(in_row / groups) * warps + warp) * args.segment;
        last = static_cast<int>(min(token + args.segment, i64{args.tokens}));
    }
};

template <class T, int kTaps, int kVector, int kRows>
struct CausalColumnWalk {
    static constexpr int kBefore = kTaps - 1;
    using Items = Vector<T, kVector, true>;

    const T* x;   // of the lane's first channel
    i64 step;     // to the next token
    bool exists;  // the channels
    const T* next = x;
    Items ahead[kRows];

    // The row behind those in flight; the last one again, where there is none.
    __device__ __forceinline__ void load_ahead(int row, int token, int last) {
        ahead[row].load_streaming(next);
        next += token + 1 < last ? step : 0;
    }
    __device__ __forceinline__ void load_first(int token, int last) {
        next = x + token * step;
        if (!exists) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) load_ahead(i, token + i, last);
    }
    // write(token, z) gets the sums of a token: all lanes call it, also behind `last`.
    template <int kChannels, class Write>
    __device__ __forceinline__ void walk(const CausalSharedTaps<kTaps, kChannels>& taps, int lane, int token, int last,
                                         Write write) {
        float weight[kTaps][kVector], bias[kVector], before[kBefore][kVector];  // the last inputs, oldest first
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = taps.bias[lane * kVector + e];
#pragma unroll
            for (int k = 0; k < kTaps; ++k) weight[k][e] = taps.weight[k][lane * kVector + e];
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            Items row;
            row.clear();
            if (token > 0 && exists) row.load(x + (token - kBefore + i) * step);  // segments are longer than kBefore
#pragma unroll
            for (int e = 0; e < kVector; ++e) before[i][e] = row[e];
        }
#pragma unroll 1
        for (; token < last; token += kRows) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float z[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    z[e] = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k) z[e] = fmaf(weight[k][e], before[k][e], z[e]);
#pragma unroll
                    for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
                    before[kBefore - 1][e] = ahead[i][e];
                    z[e] = fmaf(weight[kBefore][e], before[kBefore - 1][e], z[e]);
                }
                if (exists) load_ahead(i, token + kRows + i, last);
                write(token + i, z);
            }
        }
    }
};

// write(token, id) for the tokens that see a state, or not all of the W - 1 before them. Each lane looks at a token, and all
// lanes write those that are found.
template <class Write>
__device__ __forceinline__ void mend_columns(const CausalSequences& sequences, int taps, int lane, int begin, int last,
                                             Write write) {
    __syncwarp();  // stores of single numbers stay behind the vector stores to the same memory
#pragma unroll 1
    for (int first = begin; first < last; first += 32) {
        const int own = first + lane;
        unsigned apart = __ballot_sync(0xffffffffu, own < last && !sequences.together(own - (taps - 1), own + 1));
#pragma unroll 1
        for (; apart != 0; apart &= apart - 1) {
            const int token = first + __ffs(static_cast<int>(apart)) - 1;
            write(token, sequences.id_of(token));
        }
    }
}

}  // namespace gdn_cuda::conv
