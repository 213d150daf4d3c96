// scan/selective_backward, what a lane keeps for its states: poles, state, the state's gradient, and sums over the sequence. It
// starts from the gradient of the last state; at the end it writes the gradients of the initial state, of A, and of constant B
// and C.
#pragma once

#include <gdn_cuda/kernels/common/counters.cuh>
#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardStates : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared, Block::lane_position, Block::varies;
    using Block::kIsRglru, Block::kStates;
    using Block::load_values, Block::store_values;
    using typename Block::Lanes, typename Block::Number, typename Block::LaneValues, typename Block::Poles,
        typename Block::LanePosition;

    struct Own {
        Poles poles[kStates];
        Number carry[kStates];  // the gradient of the state after the next token in reverse order
        Number dpole[kStates];
        Number x[kStates];                   // before the chunk
        float gain[kIsRglru ? kStates : 1];  // rglru: the constant B, which multiplies the output
    };

    // Calls `call` with each state that exists, its channel, and its index in N.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
        const unsigned thread = recomputed_thread();
        const int channel = Lanes::channel(thread), first = args.first_state + Lanes::lane(thread) * kStates;
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + s < in.state_size) call(s, channel, first + s);
    }
    __device__ __forceinline__ i64 row_of(i64 row, int channel) const {
        return (row * in.dim + place.channel + channel) * in.state_size;
    }
    // The gradients of the states after the segment.
    __device__ __forceinline__ const Number* after_segment() const {
        const bool is_last = place.segment + 1 == args.segments.count;
        const i64 row = args.turns.taken() && is_last ? place.sequence : this->segment_row();
        const void* from = args.turns.taken() && !is_last ? args.turns.states : args.grad_last_state;
        return from == nullptr ? nullptr : static_cast<const Number*>(from) + row * in.dim * in.state_size;
    }
    __device__ __forceinline__ unsigned* turn(int segment) const {
        return args.turns.done + (static_cast<i64>(segment) * in.sequences + place.sequence) * gridDim.x + blockIdx.x;
    }
    __device__ __forceinline__ void wait_for_turn() const {
        if (!args.turns.taken() || place.segment + 1 == args.segments.count) return;
        if (threadIdx.x == 0) wait_for_count(turn(place.segment + 1), args.turns.wanted);
        __syncthreads();
    }
    __device__ __forceinline__ void begin(Own& own) const {
        Number padding{};
        if constexpr (kIsRglru) padding = 0.5f;  // its logarithm is finite
#pragma unroll
        for (int s = 0; s < kStates; ++s) {
            own.poles[s] = Poles::of(padding);
            own.carry[s] = own.dpole[s] = own.x[s] = Number{};
            if constexpr (kIsRglru) own.gain[s] = 1.f;
        }
        LaneValues B, C;
#pragma unroll
        for (int s = 0; s < kStates; ++s) B[s] = C[s] = Number{};
        wait_for_turn();
        const Number* const last = after_segment();
        each_state([&](int s, int channel, int n) {
            own.poles[s] = Poles::of(constant_number<Number>(in.A, place.channel + channel, n));
            if (last != nullptr) own.carry[s] = last[row_of(0, channel) + n];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) B[s] = constant_number<Number>(in.B, place.channel + channel, n);
                if (!in.C.varies) C[s] = constant_number<Number>(in.C, place.channel + channel, n);
                if constexpr (kIsRglru)
                    if (!in.B.varies) own.gain[s] = B[s];
            }
        });
        if constexpr (!kConfig.only_varying) {
            const LanePosition at = lane_position();
            // If constant, B's and C's tiles have a row per channel instead of per token.
            store_values(&shared.B[at.channel][at.offset], B);
            store_values(&shared.C[at.channel][at.offset], C);
            const LaneValues zeros{};
            store_values(&shared.constant_dB[at.channel][at.offset], zeros);
            store_values(&shared.constant_dC[at.channel][at.offset], zeros);
        }
    }
    __device__ __forceinline__ void load(Own& own, i64 chunk) const {
        const auto* from = static_cast<const Number*>(args.states);
#pragma unroll
        for (Number& x : own.x) x = Number{};
        if (chunk >= args.chunks) return;
        // A lane's states begin at a multiple of kStates, so they are aligned if the tensor and its rows are.
        const bool vectors =
            Block::kLaneFloats % 4 == 0 && in.state_size % kStates == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0;
        if (vectors) {
            const LanePosition at = lane_position();
            const int n = args.first_state + at.lane * kStates;
            if (at.channel < place.channels && n < in.state_size)
                load_values(own.x, reinterpret_cast<const float*>(from + row_of(chunk, at.channel) + n));
        } else {
            each_state([&](int s, int channel, int n) { own.x[s] = from[row_of(chunk, channel) + n]; });
        }
    }
    __device__ __forceinline__ void finish(const Own& own) const {
        LaneValues dB{}, dC{};
        if constexpr (!kConfig.only_varying) {
            const LanePosition at = lane_position();
            load_values(dB, &shared.constant_dB[at.channel][at.offset]);
            load_values(dC, &shared.constant_dC[at.channel][at.offset]);
        }
        each_state([&](int s, int channel, int n) {
            const i64 row = row_of(this->segment_row(), channel);
            Number dpole = own.dpole[s];
            if constexpr (kIsRglru)
                if (dpole != 0.f) dpole /= constant_number<Number>(in.A, place.channel + channel, n);
            reinterpret_cast<Number*>(args.dA)[row + n] = dpole;
            if (args.dinitial_state != nullptr && place.segment == 0)
                static_cast<Number*>(args.dinitial_state)[row_of(place.sequence, channel) + n] = own.carry[s];
            if (args.turns.taken() && place.segment > 0)
                static_cast<Number*>(args.turns.states)[row_of(this->segment_row() - in.sequences, channel) + n] = own.carry[s];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) reinterpret_cast<Number*>(args.dB_constant)[row + n] = dB[s];
                if (!in.C.varies) reinterpret_cast<Number*>(args.dC_constant)[row + n] = dC[s];
            }
        });
        if (args.turns.taken() && place.segment > 0) {
            __syncthreads();
            if (threadIdx.x == 0) red_release(turn(place.segment));
        }
    }
};

}  // namespace gdn_cuda::scan
