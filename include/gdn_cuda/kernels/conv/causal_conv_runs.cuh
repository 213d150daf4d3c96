// Sequences of a row as runs of neighbouring tokens, which a warp looks up together, and windows of inputs in the registers of
// a warp: what the kernels for few taps share.
//
// Rows with a seq_idx have no runs: tokens of one index need not be neighbours.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv_common.cuh>

namespace gdn_cuda::conv {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Of `reach` taps that a kernel has, those that do not exist are the first ones.
__device__ __forceinline__ float load_tap(const CausalArgs& args, int reach, int channel, int k) {
    const int tap = k - (reach - args.taps);
    return tap < 0 ? 0.f : load_number(args.weight, channel * args.weight_channel + tap * args.weight_tap);
}

struct CausalRun {
    int sequence = -1;          // packed, or of the batch
    int first = 0, end = 0;     // tokens
    Place place = Place::skip;  // what becomes of its tokens

    __device__ __forceinline__ bool contains(int token) const { return token >= first && token < end; }
    __device__ __forceinline__ bool exists() const { return place == Place::run; }
};

// kSequences: tokens of a row may be of several, and there may be states.
template <bool kSequences>
struct CausalRuns {
    CausalSequences sequences;
    int lane;

    // The run of a token. Offsets that lie give any with this token, within the row. All lanes of a warp ask for the same.
    __device__ __forceinline__ CausalRun at(int token) const {
        const CausalSequenceArgs& args = sequences.args;
        CausalRun run{.sequence = sequences.batch, .end = args.tokens};
        if constexpr (!kSequences) {
            run.place = Place::run;
            return run;
        }
        if (sequences.packed()) {
            const i64 behind = offsets_up_to(token), count = args.sequences;
            if (behind > 0) run.first = clamped(load_index(args.cu_seqlens, behind - 1), 0, token);
            if (behind <= count) run.end = clamped(load_index(args.cu_seqlens, behind), token + 1, args.tokens);
            if (behind == 0 || behind > count) return run;
            run.sequence = static_cast<int>(behind) - 1;
        }
        run.place = sequences.place_of_sequence(run.sequence);
        return run;
    }
    // The inputs in front of its first token: zeros where it has no state.
    __device__ __forceinline__ CausalSequences::State state(const CausalRun& run) const {
        return has_states() && run.exists() ? sequences.state_of(run.sequence) : CausalSequences::State{};
    }
    // Whether the tokens from `first` to before `end` are of this run, and see none in front of it, nor its state.
    template <int kBefore>
    __device__ __forceinline__ bool together(const CausalRun& run, int first, int end) const {
        const bool at_first = first == 0 && run.first == 0 && !has_states();
        return run.exists() && (run.first + kBefore <= first || at_first) && run.end >= end;
    }

  private:
    __device__ __forceinline__ bool has_states() const { return kSequences && sequences.has_states(); }
    __device__ __forceinline__ static int clamped(i64 x, i64 least, i64 most) {
        return static_cast<int>(min(max(x, least), most));
    }
    // How many offsets are at most `token`: each lane looks at the last one of a 32nd of those left.
    __device__ __forceinline__ i64 offsets_up_to(int token) const {
        i64 low = 0, high = i64{sequences.args.sequences} + 1;
#pragma unroll 1
        while (low < high) {
            const i64 step = ceil_div(high - low, 32), at = low + lane * step + step - 1;
            const bool up_to = at < high && load_index(sequences.args.cu_seqlens, at) <= token;
            low += __popc(__ballot_sync(kAllLanes, up_to)) * step;
            high = min(high, low + step - 1);
        }
        return low;
    }
};

template <class T, int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<T, kCount, true>& from) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
}
// The two bf16 numbers of a word take an instruction each.
template <int kCount>
__device__ __forceinline__ void to_floats(float* to, const Vector<__nv_bfloat16, kCount, true>& from) {
    static_assert(kCount % 2 == 0);
    const unsigned* const words = reinterpret_cast<const unsigned*>(from.items);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

// The inputs that the tokens of a lane's vector see: those of the vector and kBefore in front of it, which are the end of the
// vector of the lane before. Lane 0 gets them from `earlier`, the vector of lane 31 in front of these.
template <int kBefore, class T, int kVector>
__device__ __forceinline__ void load_window(float (&seen)[kBefore + kVector], const Vector<T, kVector, true>& own,
                                            const Vector<T, kVector, true>& earlier, int lane) {
    constexpr int kPerWord = 4 / int(sizeof(T)), kWords = kVector / kPerWord;
    constexpr int kWordsBefore = (kBefore + kPerWord - 1) / kPerWord;
    static_assert(kBefore <= kVector);
    Vector<T, kVector, true> ends;
    const unsigned* const from = reinterpret_cast<const unsigned*>(own.items);
    const unsigned* const from_earlier = reinterpret_cast<const unsigned*>(earlier.items);
#pragma unroll
    for (int i = kWords - kWordsBefore; i < kWords; ++i)
        reinterpret_cast<unsigned*>(ends.items)[i] =
            __shfl_sync(kAllLanes, lane == 31 ? from_earlier[i] : from[i], (lane + 31) % 32);
#pragma unroll
    for (int i = 0; i < kBefore; ++i) seen[i] = ends[kVector - kBefore + i];
    to_floats(seen + kBefore, own);
}

// The same as a run's tokens see them. `first` is the lane's first token, and `old` the inputs in front of the run.
template <int kBefore, int kWindow>
__device__ __forceinline__ void mask_window(float (&seen)[kWindow], const CausalRun& run, int first,
                                            const float (&old)[kBefore]) {
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
        const int token = first - kBefore + i;
        if (!run.contains(token)) seen[i] = 0.f;
#pragma unroll
        for (int k = 0; k < kBefore; ++k)
            if (token - run.first == k - kBefore) seen[i] = old[k];
    }
}

// A warp's row and tile: a block's warps have neighbouring channels, so that 32 bits number the blocks.
struct CausalRowPlace {
    int batch, channel, tile;

    __device__ __forceinline__ CausalRowPlace(int channels, int tiles, int warps) {
        const unsigned block = blockIdx.x, group = block / tiles,
                       groups = (static_cast<unsigned>(channels) + warps - 1) / warps;
        tile = static_cast<int>(block % tiles);
        batch = static_cast<int>(group / groups);
        channel = static_cast<int>(group % groups) * warps + static_cast<int>(threadIdx.x) / 32;
    }
};

}  // namespace gdn_cuda::conv
