// conv/split_columns: conv/split_conv for 4 taps, where channels are neighbours in memory and heads of q and k are some
// lanes of a warp.
//
// A lane has 4 or 8 channels and walks over a segment of tokens with the last W - 1 inputs in registers; loads of the next 8
// rows are in flight. The sum of squares of a head goes through shuffles, a few for each token. A warp has the channels of 32
// lanes, and a block four segments that follow each other. First each token is taken as if its row were one sequence that
// begins with zeros; then those that see a state, or not all of the tokens before them, are written again, one by one.
//
// Shared memory: weights and bias, which the block loads once.
//
// Bound: memory, 4 bytes an element for bf16, as for the convolution alone; the W - 1 rows in front of a segment come from the
// L2 cache.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_common.cuh>
#include <gdn_cuda/kernels/conv/inverse_root.cuh>
#include <gdn_cuda/kernels/conv/split_plan.cuh>

namespace gdn_cuda::conv {

template <SplitColumnsConfig kConfig>
struct SplitColumns {
    using T = Storage<kConfig.io>;
    static constexpr int kTaps = kConfig.taps, kVector = kConfig.lane_channels, kRows = kConfig.rows(), kBefore = kTaps - 1;
    using Items = Vector<T, kVector, true>;

    const SplitArgs& args;
    const SplitColumnsSharedPlan<kConfig>& shared;
    int batch, channel, lane;  // channel: the lane's first
    bool exists = channel < args.conv.channels;

    const CausalArgs& conv = args.conv;
    // Channels of q, and the lane's place behind those of the tensors before its own: 0, 1, 2 for q, k, v.
    int keys = args.heads.key_heads * args.heads.dk;
    int kind = min(channel / max(keys, 1), 2);
    bool normalised = kind < 2 && keys > 0 && args.heads.normalised;
    // Any lane's, as shuffles take all of them.
    bool any_normalised = __any_sync(0xffffffffu, normalised);
    i64 step = kind < 2 && keys > 0 ? keys : args.heads.value_heads* args.heads.dv;  // of a token in the lane's tensor
    T* out = static_cast<T*>(args.out[keys > 0 ? kind : 2]) + batch * step * conv.tokens + channel - kind * keys;
    const T* x = static_cast<const T*>(conv.x.data) + batch * conv.x.batch + channel;
    const T* next = x;  // the row to load next
    Items ahead[kRows];

    // The row behind those in flight; the last one again, where there is none.
    __device__ __forceinline__ void load_ahead(int row, int token, int last) {
        ahead[row].load_streaming(next);
        next += token + 1 < last ? conv.x.token : 0;
    }
    __device__ __forceinline__ void load_first(int token, int last) {
        next = x + token * conv.x.token;
        if (!exists) return;
#pragma unroll
        for (int i = 0; i < kRows; ++i) load_ahead(i, token + i, last);
    }
    // The factor of a token's outputs, from the lane's squares. All lanes take part.
    __device__ __forceinline__ float inverse_norm(float squares) const {
        for (int other = args.heads.dk / kVector / 2; other > 0; other /= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, other);
        return normalised ? inverse_root(squares + args.heads.epsilon) : 1.f;
    }
    __device__ __forceinline__ void write(int token, bool is_written, const float (&y)[kVector]) const {
        float inverse = 1.f;
        if (any_normalised) {
            float squares = 0.f;
#pragma unroll
            for (int e = 0; e < kVector; ++e) squares = fmaf(y[e], y[e], squares);
            inverse = inverse_norm(squares);
        }
        Items items;
#pragma unroll
        for (int e = 0; e < kVector; ++e) items.set(e, y[e] * inverse);
        if (is_written && exists) items.store(out + token * step);
    }
    __device__ __forceinline__ void walk(int token, int last) {
        float weight[kTaps][kVector], bias[kVector], before[kBefore][kVector];  // the last inputs, oldest first
#pragma unroll
        for (int e = 0; e < kVector; ++e) {
            bias[e] = shared.bias[lane * kVector + e];
#pragma unroll
            for (int k = 0; k < kTaps; ++k) weight[k][e] = shared.weight[k][lane * kVector + e];
        }
#pragma unroll
        for (int i = 0; i < kBefore; ++i) {
            Items row;
            row.clear();
            if (token > 0 && exists) row.load(x + (token - kBefore + i) * conv.x.token);  // segments are longer than kBefore
#pragma unroll
            for (int e = 0; e < kVector; ++e) before[i][e] = row[e];
        }
#pragma unroll 1
        for (; token < last; token += kRows) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) {
                float y[kVector];
#pragma unroll
                for (int e = 0; e < kVector; ++e) {
                    float z = bias[e];
#pragma unroll
                    for (int k = 0; k < kBefore; ++k) z = fmaf(weight[k][e], before[k][e], z);
#pragma unroll
                    for (int k = 0; k + 1 < kBefore; ++k) before[k][e] = before[k + 1][e];
                    before[kBefore - 1][e] = ahead[i][e];
                    y[e] = silu(fmaf(weight[kBefore][e], before[kBefore - 1][e], z));
                }
                if (exists) load_ahead(i, token + kRows + i, last);
                write(token + i, token + i < last, y);
            }
        }
    }
    // Each lane looks at a token, and all lanes write those that are found.
    __device__ __forceinline__ void mend(int begin, int last) const {
        __syncwarp();  // stores of single numbers stay behind the vector stores to the same memory
        const CausalSequences sequences{conv.sequences, batch};
#pragma unroll 1
        for (int first = begin; first < last; first += 32) {
            const int own = first + lane;
            unsigned apart = __ballot_sync(0xffffffffu, own < last && !sequences.together(own - kBefore, own + 1));
#pragma unroll 1
            for (; apart != 0; apart &= apart - 1) {
                const int token = first + __ffs(static_cast<int>(apart)) - 1;
                write_alone(sequences, token, sequences.id_of(token));
            }
        }
    }
    // Computes outputs twice: registers are for `walk`.
    __device__ __forceinline__ void write_alone(const CausalSequences& sequences, int token, i64 id) const {
        const int count = exists ? kVector : 0;
        float inverse = 1.f;
        if (any_normalised && id >= 0) {
            float squares = 0.f;
#pragma unroll 1
            for (int e = 0; e < count; ++e) {
                const float y = output_of_token<T>(conv, sequences, channel + e, token, id);
                squares = fmaf(y, y, squares);
            }
            inverse = inverse_norm(squares);
        }
#pragma unroll 1
        for (int e = 0; e < count; ++e)
            out[token * step + e] = from_float<T>(output_of_token<T>(conv, sequences, channel + e, token, id) * inverse);
    }
};

template <SplitColumnsConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks()) split_columns(const __grid_constant__ SplitArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SplitColumnsSharedPlan<kConfig>*>(memory);
    constexpr int kWarps = kConfig.threads() / 32, kChannels = kConfig.channels();
    const CausalArgs& conv = args.conv;
    const int groups = static_cast<int>(ceil_div(conv.channels, kChannels));
    const int segments = static_cast<int>(ceil_div(conv.tokens, i64{conv.segment} * kWarps));
    const int block = static_cast<int>(blockIdx.x), in_row = block % (groups * segments), batch = block / (groups * segments);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, first_channel = in_row % groups * kChannels;
    const i64 token = (static_cast<i64>(in_row / groups) * kWarps + thread / 32) * conv.segment;
    const int last = static_cast<int>(min(token + conv.segment, i64{conv.tokens}));

    SplitColumns<kConfig> columns{args, shared, batch, first_channel + lane * kConfig.lane_channels, lane};
    if (token < conv.tokens) columns.load_first(static_cast<int>(token), last);
    for (int i = thread; i < kChannels * (kConfig.taps + 1); i += kConfig.threads()) {
        const int c = i / (kConfig.taps + 1), k = i % (kConfig.taps + 1), of = first_channel + c;
        const bool exists = of < conv.channels;
        if (k < kConfig.taps)
            shared.weight[k][c] = exists ? load_number(conv.weight, of * conv.weight_channel + k * conv.weight_tap) : 0.f;
        else
            shared.bias[c] = exists && conv.bias.data != nullptr ? load_number(conv.bias, of * conv.bias_channel) : 0.f;
    }
    __syncthreads();
    if (token >= conv.tokens) return;
    columns.walk(static_cast<int>(token), last);
    if constexpr (kConfig.sequences) columns.mend(static_cast<int>(token), last);
}

}  // namespace gdn_cuda::conv
