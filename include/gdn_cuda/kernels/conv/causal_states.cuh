// conv/causal_states: the last inputs of every sequence, from which its next tokens continue.
//
// A thread copies the inputs of one channel of a sequence a few at a time, oldest first, so a state in a pool may be its own
// source if a sequence has fewer tokens than the state has inputs. It is launched after the convolution, all of whose blocks
// read the old states.
//
// Bound: the latency of a few loads.
#pragma once

#include <gdn_cuda/kernels/common/dependent_launch.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/conv/causal_conv/sequences.cuh>
#include <gdn_cuda/kernels/conv/causal_states_plan.cuh>

namespace gdn_cuda::conv {

template <CausalStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) causal_states(const __grid_constant__ CausalStatesArgs args) {
    using T = Storage<kConfig.io>;
    wait_on_dependent_grids();
    const int groups = static_cast<int>(ceil_div(args.channels, kConfig.threads));
    const int sequence = static_cast<int>(blockIdx.x) / groups;
    const int channel = static_cast<int>(blockIdx.x) % groups * kConfig.threads + static_cast<int>(threadIdx.x);
    if (channel >= args.channels) return;
    const bool packed = args.sequences.cu_seqlens.data != nullptr;
    const CausalSequences sequences{args.sequences, packed ? 0 : sequence};
    i64 slot = sequence;
    if (args.in_place && !sequences.runs(sequence, slot)) return;

    const Span span = span_of(args.sequences.cu_seqlens, sequence, args.sequences.tokens);
    const i64 id = packed ? sequence : span.length > 0 ? sequences.id_of(span.length - 1) : 0;
    const bool continues = sequences.has_states() && (span.length == 0 || (id >= 0 && sequences.continues(id)));
    const T* const x = static_cast<const T*>(args.x.data) + (packed ? 0 : sequence * args.x.batch) + channel * args.x.channel;
    const CausalStates& final_states = args.final_states;
    const auto input = [&](int position) {
        const int token = span.length - final_states.positions + position;  // counted from the sequence's first
        if (token < 0) return continues ? sequences.state_of(id).at(channel, -token) : 0.f;
        const bool is_seen = id >= 0 && (packed || sequences.id_of(token) == id);
        return is_seen ? to_float(x[(span.start + token) * args.x.token]) : 0.f;
    };
    constexpr int kAtOnce = 4;  // whose loads are in flight together
#pragma unroll 1
    for (int first = 0; first < final_states.positions; first += kAtOnce) {
        float inputs[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) inputs[i] = first + i < final_states.positions ? input(first + i) : 0.f;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (first + i < final_states.positions)
                store_float(final_states.values,
                            slot * final_states.slot + channel * final_states.channel + (first + i) * final_states.position,
                            inputs[i]);
    }
}

}  // namespace gdn_cuda::conv
