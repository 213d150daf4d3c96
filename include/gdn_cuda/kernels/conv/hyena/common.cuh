// Shared by the kernels of Hyena operators: loads and stores of eight consecutive tokens, u = x1 * v, masks, initial states.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena/plan.cuh>

namespace gdn_cuda::conv {

// Blocks per SM, from which ptxas derives the registers of a thread. For architectures other than Hopper the same code needs
// a few more registers, and would spill.
__host__ __device__ constexpr int blocks_without_spills(int on_hopper) {
    return kCompiledCapability == 90 ? on_hopper : on_hopper - 1;
}

inline constexpr int kEight = 8;  // consecutive tokens of a lane: one or two 16-byte vectors

// One channel of one sequence.
template <class T>
struct HyenaRow {
    T* data;
    i64 token;

    __device__ __forceinline__ HyenaRow(const HyenaTensor& x, int batch, int channel)
        : data(static_cast<T*>(x.data) + batch * x.batch + channel * x.channel), token(x.token) {}
    __device__ __forceinline__ float at(int t) const { return to_float(data[t * token]); }
};

// Not a Vector: its two accesses of 16 bytes in fp32, written out, give these kernels other registers than a loop.
template <class T>
struct EightTokens {
    static constexpr int kVectors = kEight * int(sizeof(T)) / 16;

    alignas(16) T items[kEight];

    __device__ __forceinline__ void load_streaming(const T* from) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
            reinterpret_cast<Raw<16>*>(items)[i].load_streaming(reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ __forceinline__ void load(const T* from) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) reinterpret_cast<Raw<16>*>(items)[i].load(reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ __forceinline__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) reinterpret_cast<const Raw<16>*>(items)[i].store(reinterpret_cast<uint4*>(to) + i);
    }
    __device__ __forceinline__ float operator[](int i) const { return to_float(items[i]); }
};

__device__ __forceinline__ int lane_of_warp() {
    return static_cast<int>(threadIdx.x) % 32;
}

// A warp's tile: kParts times 256 consecutive tokens of one channel. A lane has eight tokens of each part.
template <class T, int kParts>
struct TokenTile {
    static constexpr int kTokens = kParts * 32 * kEight;
    using Stage = HyenaStage<kTokens>;

    EightTokens<T> eights[kParts];

    // The lane's first token in a part of a tile.
    __device__ __forceinline__ static int first(int tile, int part) { return tile + (part * 32 + lane_of_warp()) * kEight; }

    // Called by all lanes. Tokens from `end` on are zeros. `vectors`: the row's vectors are aligned.
    __device__ __forceinline__ void load(const HyenaRow<T>& row, int tile, int end, bool vectors, Stage& stage) {
        if (vectors && tile + kTokens <= end) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) eights[part].load_streaming(row.data + first(tile, part));
            return;
        }
        T* const staged = reinterpret_cast<T*>(stage.values);
        __syncwarp();
#pragma unroll 4
        for (int i = lane_of_warp(); i < kTokens; i += 32)
            staged[i] = tile + i < end ? row.data[(tile + i) * row.token] : from_float<T>(0.f);
        __syncwarp();
#pragma unroll
        for (int part = 0; part < kParts; ++part) eights[part].load(staged + first(0, part));
    }
    __device__ __forceinline__ void store(const HyenaRow<T>& row, int tile, int end, bool vectors, Stage& stage) const {
        if (vectors && tile + kTokens <= end) {
#pragma unroll
            for (int part = 0; part < kParts; ++part) eights[part].store(row.data + first(tile, part));
            return;
        }
        T* const staged = reinterpret_cast<T*>(stage.values);
        __syncwarp();
#pragma unroll
        for (int part = 0; part < kParts; ++part) eights[part].store(staged + first(0, part));
        __syncwarp();
#pragma unroll 4
        for (int i = lane_of_warp(); i < kTokens; i += 32)
            if (tile + i < end) row.data[(tile + i) * row.token] = staged[i];
    }
};

__device__ __forceinline__ float mask_at(const HyenaMask& mask, int batch, int token) {
    const i64 at = batch * mask.batch + token * mask.token;
    if (mask.is_bool) return static_cast<const unsigned char*>(mask.values.data)[at] != 0 ? 1.f : 0.f;
    const DType type = mask.values.type;
    if (type == DType::i32 || type == DType::i64) return static_cast<float>(load_index(mask.values, at));
    return load_float(mask.values, at);
}

// Called by all lanes: stages the mask's factors of a tile, 0 from `end` on.
template <int kTokens>
__device__ __forceinline__ void stage_mask(HyenaStage<kTokens>& stage, const HyenaMask& mask, int batch, int tile, int end) {
    __syncwarp();
#pragma unroll 1
    for (int i = lane_of_warp(); i < kTokens; i += 32) stage.values[i] = tile + i < end ? mask_at(mask, batch, tile + i) : 0.f;
    __syncwarp();
}

// The value of an initial state `before` tokens before the first token, 1 for the last; 0 beyond the state.
__device__ __forceinline__ float initial_at(const HyenaInitial& initial, int batch, int channel, int length, int before) {
    if (initial.values.data == nullptr || before > length) return 0.f;
    return load_float(initial.values, batch * initial.batch + channel * initial.channel + (length - before) * initial.position);
}

// u at a token, which may be negative; for the few tokens before a warp's segment.
template <class T>
__device__ __forceinline__ float u_at(const HyenaArgs& args, int batch, int channel, int token) {
    if (token < 0) return initial_at(args.initial, batch, channel, args.filter.taps - 1, -token);
    return HyenaRow<T>(args.x1, batch, channel).at(token) * HyenaRow<T>(args.v, batch, channel).at(token);
}

// The tap that multiplies u of `lag` tokens ago.
__device__ __forceinline__ float correlation_tap(const HyenaFilter& filter, int channel, int lag) {
    const i64 at = channel / filter.channels_a_group * filter.group + (filter.taps - 1 - lag) * filter.tap;
    return load_float(filter.weight, at);
}
__device__ __forceinline__ float bias_of(const HyenaFilter& filter, int channel) {
    return filter.bias.data == nullptr ? 0.f : load_float(filter.bias, channel * filter.bias_channel);
}

// Writes the state after the last token; called by `lanes` lanes for a channel.
template <class T>
__device__ __forceinline__ void write_last_inputs(const HyenaArgs& args, int batch, int channel, int lane, int lanes) {
    const int length = args.filter.taps - 1;
    float* to = args.last + (static_cast<i64>(batch) * args.channels + channel) * length;
    for (int i = lane; i < length; i += lanes) to[i] = u_at<T>(args, batch, channel, args.tokens - length + i);
}

// A warp's tokens: a segment of one sequence, of one channel or of some contiguous channels.
struct HyenaSegment {
    int batch, column, index, first, end;

    // Segment `index` of the grid, in which segments vary fastest. `columns`: channels or groups of channels.
    __device__ __forceinline__ static HyenaSegment of(const auto& args, i64 index, int columns) {
        const i64 row = index / args.segments;
        const int in_row = static_cast<int>(index - row * args.segments), batch = static_cast<int>(row / columns);
        const int first = in_row * args.segment_tokens;
        return {batch, static_cast<int>(row - static_cast<i64>(batch) * columns), in_row, first,
                first + min(args.tokens - first, args.segment_tokens)};
    }
    __device__ __forceinline__ bool exists(const auto& args) const { return batch < args.batches; }
    __device__ __forceinline__ bool is_last(const auto& args) const { return index == args.segments - 1; }
};

// Segment `index` of the grid; consecutive ones have adjacent columns of the same tokens.
__device__ __forceinline__ HyenaSegment segment_of_columns(const auto& args, i64 index, int columns) {
    const i64 row = index / columns;  // sequence and segment
    const int column = static_cast<int>(index - row * columns);
    const i64 batch = row / args.segments, segment = row - batch * args.segments;
    return HyenaSegment::of(args, (batch * columns + column) * args.segments + segment, columns);
}

}  // namespace gdn_cuda::conv
