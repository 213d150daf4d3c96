// Sequences of a row as runs of neighbouring tokens, which a warp looks up together, and windows of inputs in the registers of
// a warp: what the kernels for few taps share.
//
// Rows with a seq_idx have no runs: tokens of one index need not be neighbours.
#pragma once

#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>
#include <gdn_cuda/kernels/conv/to_floats.cuh>

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

// Offsets of packed sequences that follow each other, one in each lane of a warp: around no token yet.
struct CausalOffsets {
    int sequence = 0;  // whose offset lane 0 has; -1: there is none, and it has 0
    int offset = 0;    // within the row; its end, behind the last one
};

// kSequences: tokens of a row may be of several, and there may be states. kPacked: not by a seq_idx.
template <bool kSequences, bool kPacked = kSequences>
struct CausalRuns {
    CausalSequences sequences;
    int lane;

    // The run of a token. Offsets that lie give any with this token, within the row. All lanes of a warp ask for the same.
    __device__ __forceinline__ CausalRun at(int token) const {
        CausalOffsets near;
        return at(token, near);
    }
    // The same, without a load where the offsets around the token are those of `near`, which becomes them.
    __device__ __forceinline__ CausalRun at(int token, CausalOffsets& near) const {
        const CausalSequenceArgs& args = sequences.args;
        CausalRun run{.sequence = sequences.batch, .end = args.tokens};
        if constexpr (!kPacked) {
            run.place = Place::run;
            return run;
        }
        if (sequences.packed()) {
            int up_to = count_up_to(token, near);
            if (up_to == 0 || up_to == 32) {
                near = around(token);
                up_to = min(max(count_up_to(token, near), 1), 31);
            }
            run.first = min(__shfl_sync(kAllLanes, near.offset, up_to - 1), token);
            run.end = max(__shfl_sync(kAllLanes, near.offset, up_to), token + 1);
            run.sequence = near.sequence + up_to - 1;
            if (run.sequence < 0 || run.sequence >= args.sequences) return run;
        }
        run.place = sequences.place_of_sequence(run.sequence);
        return run;
    }
    // The offsets that have the last one up to a token, and the next.
    __device__ __forceinline__ CausalOffsets around(int token) const {
        const CausalSequenceArgs& args = sequences.args;
        i64 low = 0, high = i64{args.sequences} + 1;  // how many are up to the token, at least and at most
#pragma unroll 1
        while (high - low > 30) {  // each lane looks at the last one of a 32nd of those left
            const i64 step = ceil_div(high - low, 32), at = low + lane * step + step - 1;
            const bool up_to = at < high && load_index(args.cu_seqlens, at) <= token;
            low += __popc(__ballot_sync(kAllLanes, up_to)) * step;
            high = min(high, low + step - 1);
        }
        CausalOffsets found{.sequence = static_cast<int>(low) - 1, .offset = args.tokens};
        const i64 own = low - 1 + lane;
        if (own < 0)
            found.offset = 0;
        else if (own <= args.sequences)
            found.offset = static_cast<int>(min(max(load_index(args.cu_seqlens, own), i64{0}), i64{args.tokens}));
        return found;
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
    __device__ __forceinline__ static int count_up_to(int token, const CausalOffsets& near) {
        return __popc(__ballot_sync(kAllLanes, near.offset <= token));
    }
};

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
