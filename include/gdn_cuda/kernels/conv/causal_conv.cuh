// conv/causal_conv: out[t] = act(bias + sum over k of weight[k] x[t - (W - 1) + k]) for 3 or 4 taps, where tokens are
// neighbours in memory.
//
// A warp has 128 vectors of 16 bytes of a row, four for each lane, which are all loaded before the first is used. The inputs
// before a lane's vector are the end of the vector of the lane before it, by a shuffle; the last lane passes on the one before,
// so that lane 0 gets the end of the 32 vectors before these. Tokens that see a state, or not all of those before
// them, are computed again, one by one from memory.
//
// Bound: memory, 4 bytes an element for bf16. At that rate an SM has 27 instructions for an element, of which this takes 12. 32
// KB have to be in flight in an SM: 64 bytes a thread, 16 warps or more.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_common.cuh>

namespace gdn_cuda::conv {

template <CausalConvConfig kConfig>
struct CausalRows {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kVector = kConfig.vector(), kVectors = kConfig.vectors();
    static constexpr int kPerWord = 4 / int(sizeof(T)), kWords = 4;
    static constexpr int kWordsBefore = (kTaps - 1 + kPerWord - 1) / kPerWord;  // with the inputs before a vector
    static_assert(kTaps - 1 <= kVector && kTaps >= 2);
    using Items = Vector<T, kVector, true>;

    const CausalArgs& args;
    int batch, channel, lane;
    CausalSequences sequences{args.sequences, batch};
    float weight[kTaps], bias;

    __device__ __forceinline__ void load_weights() {
#pragma unroll
        for (int k = 0; k < kTaps; ++k)
            weight[k] = load_number(args.weight, channel * args.weight_channel + k * args.weight_tap);
        bias = args.bias.data == nullptr ? 0.f : load_number(args.bias, channel * args.bias_channel);
    }
    // The outputs of a vector; `before` is the vector in front of it of the last lane, and becomes this one.
    __device__ __forceinline__ Items outputs(const Items& x, Items& before) const {
        alignas(16) Items ends;  // the vector of the lane before
        const unsigned* const own = reinterpret_cast<const unsigned*>(x.items);
        const unsigned* const earlier = reinterpret_cast<const unsigned*>(before.items);
#pragma unroll
        for (int i = kWords - kWordsBefore; i < kWords; ++i)
            reinterpret_cast<unsigned*>(ends.items)[i] =
                __shfl_sync(0xffffffffu, lane == 31 ? earlier[i] : own[i], (lane + 31) % 32);
        float seen[kTaps - 1 + kVector];
#pragma unroll
        for (int i = 0; i < kTaps - 1; ++i) seen[i] = ends[kVector - (kTaps - 1) + i];
#pragma unroll
        for (int i = 0; i < kVector; ++i) seen[kTaps - 1 + i] = x[i];
        Items y;
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            float z = bias;
#pragma unroll
            for (int k = 0; k < kTaps; ++k) z = fmaf(weight[k], seen[i + k], z);
            y.set(i, output_of(z, args.silu));
        }
        before = x;
        return y;
    }

    // ---- Tokens that see a state, or not all of those before them: written again, one by one

    // As CausalSequences::together, by all lanes.
    __device__ __forceinline__ bool together(int first, int end) const {
        if (args.sequences.seq_idx.data == nullptr) return sequences.together(first, end);
        const i64 id = sequences.id_of(max(first, 0));
        bool same = id >= 0 && !(first < 0 && sequences.has_states());
#pragma unroll 4
        for (int i = max(first, 0) + lane; i < end; i += 32) same &= sequences.id_of(i) == id;
        return __all_sync(0xffffffffu, same);
    }
    __device__ __forceinline__ void mend(int begin, T* out) const {
        if (together(begin - (kTaps - 1), min(begin + kConfig.warp_tokens(), args.tokens))) return;
#pragma unroll 1
        for (int first = begin + lane * kVector; first < min(begin + kConfig.warp_tokens(), args.tokens);
             first += 32 * kVector) {
            if (sequences.together(first - (kTaps - 1), first + kVector)) continue;
#pragma unroll 1
            for (int token = first; token < first + kVector; ++token) {
                const i64 id = sequences.id_of(token);
                out[token] = from_float<T>(output_of_token<T>(args, sequences, channel, token, id));
            }
        }
    }

    __device__ __forceinline__ void run(int tile) {
        const T* const x = static_cast<const T*>(args.x.data) + batch * args.x.batch + channel * args.x.channel;
        T* const out = static_cast<T*>(args.out.data) + batch * args.out.batch + channel * args.out.channel;
        const int begin = tile * kConfig.warp_tokens(), first = begin + lane * kVector;
        constexpr int kStep = 32 * kVector;
        Items in[kVectors], before;
        before.clear();
        if (lane == 31 && begin > 0) before.load_streaming(x + begin - kVector);
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            in[i].clear();
            if (first + i * kStep < args.tokens) in[i].load_streaming(x + first + i * kStep);
        }
        load_weights();
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
            if (begin + i * kStep >= args.tokens) break;
            const Items y = outputs(in[i], before);
            if (first + i * kStep < args.tokens) y.store_global(out + first + i * kStep);
        }
        if constexpr (kConfig.sequences) mend(begin, out);
    }
};

template <CausalConvConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.sequences ? 5 : 8)
    causal_conv(const __grid_constant__ CausalArgs args) {
    const int tiles = static_cast<int>(ceil_div(args.tokens, kConfig.warp_tokens()));
    const int thread = static_cast<int>(threadIdx.x);
    const i64 warp = static_cast<i64>(blockIdx.x) * (kConfig.threads() / 32) + thread / 32, row = warp / tiles;
    const int batch = static_cast<int>(row / args.channels);
    if (batch >= args.batches) return;
    CausalRows<kConfig>{args, batch, static_cast<int>(row % args.channels), thread % 32}.run(static_cast<int>(warp % tiles));
}

}  // namespace gdn_cuda::conv
