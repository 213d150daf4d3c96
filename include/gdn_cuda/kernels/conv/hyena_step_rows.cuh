// What the steps of Hyena share: a thread's channel, the sequences that it takes in turn, where a state is, and numbers of any
// dtype.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/conv/hyena_step_plan.cuh>

namespace gdn_cuda::conv {

// A channel of a sequence.
struct HyenaStepRow {
    bool runs = false;
    Place place = Place::run;
    i64 sequence = 0;
    int channel = 0;
    i64 state = 0;  // of its first number in the pool, in elements

    __device__ __forceinline__ i64 at(const HyenaTokens& x, int token) const {
        return sequence * x.sequence + channel * x.channel + token * x.token;
    }
    __device__ __forceinline__ float load(const HyenaTokens& x, int token) const {
        return runs ? load_number(x.values, at(x, token)) : 0.f;
    }
    __device__ __forceinline__ void store(const HyenaTokens& to, int token, float x) const {
        store_number(to.values, at(to, token), x);
    }
    // The output of a sequence that does not run.
    __device__ __forceinline__ void fill(const HyenaTokens& out, int tokens, int lane, int lanes) const {
        const float value = place == Place::skip ? 0.f : quiet_nan();
        for (int t = lane; t < tokens; t += lanes) store(out, t, value);
    }
};

// A thread has a channel of all sequences of its block, so that the filter is loaded once. Threads behind the last channel take
// part in shuffles, and neither load nor store.
struct HyenaStepRows {
    const HyenaStepArgs& args;
    bool exists;
    int channel, group;
    i64 first, end;  // sequences

    // `rows` channels a block, of which the thread has the `row`-th.
    __device__ __forceinline__ HyenaStepRows(const HyenaStepArgs& args, int rows, int row) : args(args) {
        const unsigned blocks = (static_cast<unsigned>(args.channels) + rows - 1) / rows, turn = blockIdx.x / blocks;
        const unsigned at = (blockIdx.x - turn * blocks) * rows + row;
        exists = at < static_cast<unsigned>(args.channels);
        channel = static_cast<int>(exists ? at : 0);
        group = channel / args.group_channels;
        first = static_cast<i64>(turn) * args.block_sequences;
        end = min(first + args.block_sequences, args.sequences);
    }
    __device__ __forceinline__ HyenaStepRow at(i64 sequence) const {
        HyenaStepRow row{exists, Place::run, sequence, channel};
        i64 slot = sequence;
        if (exists && args.slots.data != nullptr) {
            slot = load_index(args.slots, sequence);
            row.place = place_of(args, slot);
            row.runs = row.place == Place::run;
        }
        if (row.runs) row.state = slot * args.state_slot + channel * args.state_channel;
        return row;
    }
};

// Sequence after sequence: loads one while the one before it is computed.
template <class Step, class Args>
__device__ __forceinline__ void step_through_sequences(const Args& args) {
    const HyenaStepRows rows(args, Step::kRows, static_cast<int>(threadIdx.x) / Step::kLanes);
    Step step{args};
    HyenaStepRow next = rows.at(rows.first);
    typename Step::Loaded following;
    step.load(following, next);
    step.load_filter(rows);
    for (i64 sequence = rows.first; sequence < rows.end; ++sequence) {
        const HyenaStepRow row = next;
        const typename Step::Loaded loaded = following;
        if (sequence + 1 < rows.end) {
            next = rows.at(sequence + 1);
            step.load(following, next);
        }
        if (rows.exists && !row.runs) row.fill(args.out, args.tokens, step.lane, Step::kLanes);
        step.run(row, loaded);
    }
}

}  // namespace gdn_cuda::conv
