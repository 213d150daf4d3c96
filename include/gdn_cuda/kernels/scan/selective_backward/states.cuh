// What a lane of scan/selective_backward keeps of a channel: poles, the state, its gradient, and sums over the sequence. It
// begins with the gradient of the last state and ends as the gradients of the initial state, of A, and of constant B and C.
#pragma once

#include <gdn_cuda/kernels/scan/selective_backward/block.cuh>

namespace gdn_cuda::scan {

template <SelectiveBackwardConfig kConfig>
struct BackwardStates : BackwardBlock<kConfig> {
    using Block = BackwardBlock<kConfig>;
    using Block::args, Block::in, Block::place, Block::shared, Block::seat, Block::varies;
    using Block::kIsRglru, Block::kStates;
    using Block::load_numbers, Block::store_numbers;
    using typename Block::Lanes, typename Block::Number, typename Block::Numbers, typename Block::Poles, typename Block::Seat;

    struct Own {
        Poles poles[kStates];
        Number carry[kStates];  // the gradient of the state after the last token still to come
        Number dpole[kStates];
        Number x[kStates];                   // before the chunk
        float gain[kIsRglru ? kStates : 1];  // of the output of rglru, whose state has no B
    };

    // Calls with each state that exists and its index in N.
    template <class F>
    __device__ __forceinline__ void each_state(const F& call) const {
        const unsigned thread = thread_again();
        const int channel = Lanes::channel(thread), first = args.first_state + Lanes::lane(thread) * kStates;
#pragma unroll
        for (int s = 0; s < kStates; ++s)
            if (channel < place.channels && first + s < in.state_size) call(s, channel, first + s);
    }
    __device__ __forceinline__ i64 row_of(i64 row, int channel) const {
        return (row * in.dim + place.channel + channel) * in.state_size;
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
        Numbers B, C;
#pragma unroll
        for (int s = 0; s < kStates; ++s) B[s] = C[s] = Number{};
        const auto* last = static_cast<const Number*>(args.grad_last_state);
        each_state([&](int s, int channel, int n) {
            own.poles[s] = Poles::of(constant_number<Number>(in.A, place.channel + channel, n));
            if (last != nullptr) own.carry[s] = last[row_of(this->row_of_piece(), channel) + n];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) B[s] = constant_number<Number>(in.B, place.channel + channel, n);
                if (!in.C.varies) C[s] = constant_number<Number>(in.C, place.channel + channel, n);
                if constexpr (kIsRglru)
                    if (!in.B.varies) own.gain[s] = B[s];
            }
        });
        if constexpr (!kConfig.only_varying) {
            const Seat at = seat();
            // Without tokens, a tile has a row for each channel.
            store_numbers(&shared.B[at.channel][at.number], B);
            store_numbers(&shared.C[at.channel][at.number], C);
            const Numbers zeros{};
            store_numbers(&shared.constant_dB[at.channel][at.number], zeros);
            store_numbers(&shared.constant_dC[at.channel][at.number], zeros);
        }
    }
    __device__ __forceinline__ void load(Own& own, i64 chunk) const {
        const auto* from = static_cast<const Number*>(args.states);
#pragma unroll
        for (Number& x : own.x) x = Number{};
        if (chunk >= args.chunks) return;
        // A lane's states begin at a multiple of them: they are vectors if the first and the rows are.
        const bool vectors =
            Block::kNumbers % 4 == 0 && in.state_size % kStates == 0 && reinterpret_cast<unsigned long long>(from) % 16 == 0;
        if (vectors) {
            const Seat at = seat();
            const int n = args.first_state + at.lane * kStates;
            if (at.channel < place.channels && n < in.state_size)
                load_numbers(own.x, reinterpret_cast<const float*>(from + row_of(chunk, at.channel) + n));
        } else {
            each_state([&](int s, int channel, int n) { own.x[s] = from[row_of(chunk, channel) + n]; });
        }
    }
    __device__ __forceinline__ void finish(const Own& own) const {
        Numbers dB{}, dC{};
        if constexpr (!kConfig.only_varying) {
            const Seat at = seat();
            load_numbers(dB, &shared.constant_dB[at.channel][at.number]);
            load_numbers(dC, &shared.constant_dC[at.channel][at.number]);
        }
        each_state([&](int s, int channel, int n) {
            const i64 row = row_of(this->row_of_piece(), channel);
            Number dpole = own.dpole[s];
            if constexpr (kIsRglru)
                if (dpole != 0.f) dpole /= constant_number<Number>(in.A, place.channel + channel, n);
            reinterpret_cast<Number*>(args.dA)[row + n] = dpole;
            if (args.dinitial_state != nullptr && place.piece == 0)
                static_cast<Number*>(args.dinitial_state)[row_of(place.sequence, channel) + n] = own.carry[s];
            if constexpr (!kConfig.only_varying) {
                if (!in.B.varies) reinterpret_cast<Number*>(args.dB_constant)[row + n] = dB[s];
                if (!in.C.varies) reinterpret_cast<Number*>(args.dC_constant)[row + n] = dC[s];
            }
        });
    }
};

}  // namespace gdn_cuda::scan
