// Which tokens of a row belong to the same sequence, the states before them, and the activation: shared by the kernels of
// causal_conv1d.
//
// The sequence of a token has an id: the packed sequence's index, the token's seq_idx, or 0. A token sees those of the last
// W tokens that have its id. Every kernel adds bias and taps in the same order, oldest tap first, so they all give a token
// the same bits.
#pragma once

#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/plan.cuh>

namespace gdn_cuda::conv {

// Ids of tokens in no sequence (output 0) and of tokens whose state slot is invalid (output NaN).
inline constexpr i64 kNoSequence = -1, kPoisoned = -2;

// The sequences of one row of a batch.
struct CausalSequences {
    const CausalSequenceArgs& args;
    int batch;

    __device__ __forceinline__ bool packed() const { return args.cu_seqlens.data != nullptr; }
    __device__ __forceinline__ bool has_states() const { return args.initial.values.data != nullptr; }
    // Whether a row can hold tokens with different ids.
    __device__ __forceinline__ bool varies() const { return packed() || args.seq_idx.data != nullptr; }

    // The packed sequence of a token, or -1. Invalid offsets give any sequence or -1.
    __device__ __forceinline__ int packed_sequence(int token) const {
        int low = 0,
            high = args.sequences;  // sequences before `low` begin at or before the token, those from `high` on after it
        while (low < high) {
            const int middle = low + (high - low) / 2;
            if (load_index(args.cu_seqlens, middle) <= token)
                low = middle + 1;
            else
                high = middle;
        }
        return low > 0 && load_index(args.cu_seqlens, low) > token ? low - 1 : -1;
    }
    __device__ __forceinline__ i64 id_of(int token) const {
        const int sequence = packed() ? packed_sequence(token) : batch;
        if (sequence < 0) return kNoSequence;
        i64 slot;
        const Place place = slot_of(sequence, slot);
        if (place != Place::run) return place == Place::skip ? kNoSequence : kPoisoned;
        if (packed()) return sequence;
        if (args.seq_idx.data == nullptr) return 0;
        const i64 id = index_of(token);
        return id < 0 ? kNoSequence : id;
    }
    // With seq_idx. A state before the row belongs to the sequence of the first token.
    __device__ __forceinline__ i64 index_of(int token) const {
        return load_index(args.seq_idx, batch * args.seq_idx_batch + max(token, 0) * args.seq_idx_token);
    }
    // The first token of a sequence; its state holds the inputs before it.
    __device__ __forceinline__ i64 first_token(i64 id) const {
        return packed() ? min(max(load_index(args.cu_seqlens, id), i64{0}), i64{args.tokens}) : 0;
    }
    // Whether this sequence continues from a state.
    __device__ __forceinline__ bool continues(i64 id) const {
        return has_states() && (packed() || args.seq_idx.data == nullptr || id == id_of(0));
    }
    // The inputs before a sequence's first token; zeros if it has no state.
    struct State {
        Tagged values;
        i64 end = 0, channel = 0, position = 0;  // `end` is one past the last position of channel 0
        int positions = 0;

        // The input `back` >= 1 tokens before the sequence's first.
        __device__ __forceinline__ float at(int c, i64 back) const {
            return back > positions ? 0.f : load_float(values, end + c * channel - back * position);
        }
    };
    __device__ __forceinline__ State state_of(i64 id) const {
        const int sequence = packed() ? static_cast<int>(id) : batch;
        const bool fresh =
            args.has_initial.data != nullptr && load_index(args.has_initial, sequence * args.has_initial_sequence) == 0;
        i64 slot;
        if (fresh || slot_of(sequence, slot) != Place::run) return {};
        const CausalStates& states = args.initial;
        return {states.values, slot * states.slot + states.positions * states.position, states.channel, states.position,
                states.positions};
    }
    __device__ __forceinline__ Place place_of_sequence(int sequence) const {
        i64 slot;
        return slot_of(sequence, slot);
    }
    // Whether a sequence has a valid slot.
    __device__ __forceinline__ bool runs(int sequence, i64& slot) const { return slot_of(sequence, slot) == Place::run; }

  private:
    __device__ __forceinline__ Place slot_of(int sequence, i64& slot) const {
        slot = sequence;
        if (args.slots.data == nullptr) return Place::run;
        slot = load_index(args.slots, sequence * args.slots_sequence);
        return place_of(args, slot);
    }
};

__device__ __forceinline__ float output_of(float z, bool activated) {
    return activated ? silu(z) : z;
}
// The output of a token in no sequence.
__device__ __forceinline__ float output_without_sequence(i64 id) {
    return id == kPoisoned ? quiet_nan() : 0.f;
}

// Computes one token's output from global memory: for tokens that see a state or not all W - 1 tokens before them.
template <class T>
__device__ __forceinline__ float output_of_token(const CausalArgs& args, const CausalSequences& sequences, int channel,
                                                 int token, i64 id) {
    if (id < 0) return output_without_sequence(id);
    const T* const x = static_cast<const T*>(args.x.data) + sequences.batch * args.x.batch + channel * args.x.channel;
    const i64 first = sequences.first_token(id);
    const bool continues = sequences.continues(id), by_token = args.sequences.seq_idx.data != nullptr;
    const CausalSequences::State state = continues ? sequences.state_of(id) : CausalSequences::State{};
    float z = args.bias.data == nullptr ? 0.f : load_float(args.bias, channel * args.bias_channel);
#pragma unroll 1
    for (int k = 0; k < args.taps; ++k) {
        const i64 at = token - (args.taps - 1) + k;
        if (at < first ? !continues : by_token && sequences.id_of(static_cast<int>(at)) != id) continue;
        const float seen = at < first ? state.at(channel, first - at) : to_float(x[at * args.x.token]);
        z = fmaf(load_float(args.weight, channel * args.weight_channel + k * args.weight_tap), seen, z);
    }
    return output_of(z, args.silu);
}

}  // namespace gdn_cuda::conv
