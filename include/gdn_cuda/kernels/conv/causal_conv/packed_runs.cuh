// The sequences of a packed row as runs of contiguous tokens, found by a whole warp at once, and windows of inputs in a
// warp's registers. The kernels for few taps share both.
//
// Rows with a seq_idx have no runs: tokens with the same index may be apart.
#pragma once

#include <gdn_cuda/kernels/common/to_floats.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>

namespace gdn_cuda::conv {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// A kernel compiled for `reach` taps aligns the taps at its end: the first ones are missing.
__device__ __forceinline__ float load_tap(const CausalArgs& args, int reach, int channel, int k) {
    const int tap = k - (reach - args.taps);
    return tap < 0 ? 0.f : load_float(args.weight, channel * args.weight_channel + tap * args.weight_tap);
}

struct CausalRun {
    int sequence = -1;          // in cu_seqlens or in the batch
    int first = 0, end = 0;     // tokens [first, end)
    Place place = Place::skip;  // whether its tokens are computed, zeroed or poisoned

    __device__ __forceinline__ bool contains(int token) const { return token >= first && token < end; }
    __device__ __forceinline__ bool exists() const { return place == Place::run; }
};

// 32 consecutive offsets of cu_seqlens, one per lane. By default around no token.
struct CausalOffsets {
    int sequence = 0;  // the sequence whose offset lane 0 holds; -1: no sequence, offset 0
    int offset = 0;    // clamped to the row; its length after the last sequence
};

// kSequences: a row may have several sequences, and there may be states. kPacked: cu_seqlens gives the sequences, not
// seq_idx.
template <bool kSequences, bool kPacked = kSequences>
struct CausalRuns {
    CausalSequences sequences;
    int lane;

    // The run that contains `token`. Invalid offsets give some run that contains it, within the row. All lanes pass the same
    // token.
    __device__ __forceinline__ CausalRun at(int token) const {
        CausalOffsets near;
        return at(token, near);
    }
    // Like at(token), but loads no offsets if `near` already brackets the token; otherwise updates `near`.
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
    // Offsets that include the last one <= token and the next one.
    __device__ __forceinline__ CausalOffsets around(int token) const {
        const CausalSequenceArgs& args = sequences.args;
        i64 low = 0, high = i64{args.sequences} + 1;  // bounds of the number of offsets <= token
#pragma unroll 1
        while (high - low > 30) {  // each lane tests the last offset of one 32nd of the range
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
    // The inputs before the run's first token: zeros if it has no state.
    __device__ __forceinline__ CausalSequences::State state(const CausalRun& run) const {
        return has_states() && run.exists() ? sequences.state_of(run.sequence) : CausalSequences::State{};
    }
    // Whether tokens [first, end) belong to this run and see neither its state nor tokens before it.
    template <int kBefore>
    __device__ __forceinline__ bool is_uniform(const CausalRun& run, int first, int end) const {
        const bool at_first = first == 0 && run.first == 0 && !has_states();
        return run.exists() && (run.first + kBefore <= first || at_first) && run.end >= end;
    }

  private:
    __device__ __forceinline__ bool has_states() const { return kSequences && sequences.has_states(); }
    __device__ __forceinline__ static int count_up_to(int token, const CausalOffsets& near) {
        return __popc(__ballot_sync(kAllLanes, near.offset <= token));
    }
};

// The inputs that the tokens of a lane's vector see: the vector itself and the kBefore inputs before it, which are the end
// of the previous lane's vector. Lane 0 gets them from `earlier`, lane 31's vector of the step before.
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

// Replaces inputs outside of the run by zeros, or by `history`, the inputs before the run. `first` is the lane's first
// token.
template <int kBefore, int kWindow>
__device__ __forceinline__ void mask_window(float (&seen)[kWindow], const CausalRun& run, int first,
                                            const float (&history)[kBefore]) {
#pragma unroll
    for (int i = 0; i < kWindow; ++i) {
        const int token = first - kBefore + i;
        if (!run.contains(token)) seen[i] = 0.f;
#pragma unroll
        for (int k = 0; k < kBefore; ++k)
            if (token - run.first == k - kBefore) seen[i] = history[k];
    }
}

// A warp's row and tile. The warps of a block have adjacent channels; all blocks are in grid dimension x, which has 32 bits.
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
