// ssd/replay_step: where a block works, what the ring of its sequence holds, and what becomes of both.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/ssd/replay_step/plan.cuh>

namespace gdn_cuda::ssd {

// Some rows of one group of heads, of one sequence. A row is a channel of a head.
template <ReplayStepConfig kConfig>
struct ReplayPlace {
    using Io = Storage<kConfig.io>;

    int sequence, group;
    int first_row, rows;  // first_row: within the group
    int first_head;       // of the block, among all heads
    int first_channel;    // of the first row, in the first head
    i64 slot;
    i64 accepted;  // how many of the last call's tokens
    i64 start;     // first token, along the token stride
    int length;    // new tokens
    int stored;    // entries of the ring that count
    bool asked;    // to write the state
    bool folds;    // it is written
    bool keeps;    // new tokens go to the ring
    int next;      // the entry for the first of them

    // Everything but the slot and the ring. The loads of the slot and of the accepted tokens are in flight afterwards.
    __device__ __forceinline__ explicit ReplayPlace(const ReplayStepArgs& args) {
        group = static_cast<int>(blockIdx.y);
        sequence = static_cast<int>(blockIdx.z);
        first_row = static_cast<int>(blockIdx.x) * args.block_rows;
        rows = min(args.block_rows, args.group_heads * args.channels - first_row);
        const int head = static_cast<int>(static_cast<unsigned>(first_row) / static_cast<unsigned>(args.channels));
        first_head = group * args.group_heads + head;
        first_channel = first_row - head * args.channels;
        slot = args.slots.data == nullptr ? sequence : load_index(args.slots, sequence * args.slots_sequence);
        accepted = args.verifies() ? load_index(args.accepted, sequence) : 0;
        asked = args.fold || (args.fold_mask != nullptr && args.fold_mask[sequence]);
        const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
        start = span.start;
        length = span.length;
    }
    // Whether there is room for the new tokens, in shared memory and in the ring.
    __device__ __forceinline__ bool has_room(const ReplayStepArgs& args) const {
        return length <= kConfig.tokens && (!args.verifies() || length <= args.entries);
    }
    // Returns whether the sequence is computed; if not, its outputs are filled.
    __device__ __forceinline__ bool has_slot(const ReplayStepArgs& args) const {
        if (args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens after the last sequence
            fill(args, start + length, args.tokens, 0.f);
        const Place where = place_of(args, slot);
        if (where == Place::run && has_room(args)) return true;
        fill_own(args, where == Place::skip ? 0.f : quiet_nan());
        return false;
    }
    // Returns whether there is anything to do. A count out of range fills the outputs with NaN.
    __device__ __forceinline__ bool read_ring(const ReplayStepArgs& args, i64 cursor) {
        const i64 before = cursor & ((1 << kPendingBits) - 1), more = max(accepted, i64{0});
        const i64 all = more > args.entries ? more : before + more;
        if (all > args.entries) {
            fill_own(args, quiet_nan());
            return false;
        }
        stored = static_cast<int>(all);
        const bool fits = stored + length <= args.entries;
        folds = (asked || !fits) && (args.verifies() ? stored : stored + length) > 0;
        keeps = args.verifies() || !folds;
        next = folds ? 0 : stored;
        return stored + length > 0;
    }
    // Entries in shared memory that the written state takes, and the row of weights for it.
    __device__ __forceinline__ int folded(const ReplayStepArgs& args) const {
        return args.verifies() ? stored : stored + length;
    }
    __device__ __forceinline__ int fold_row(const ReplayStepArgs& args) const {
        return args.verifies() || length == 0 ? kConfig.tokens : length - 1;
    }
    __device__ __forceinline__ int pending_after(const ReplayStepArgs& args) const {
        if (args.verifies()) return folds ? 0 : stored;
        return folds ? 0 : stored + length;
    }
    // New tokens replace entries that other blocks may not have read yet.
    __device__ __forceinline__ bool overwrites(const ReplayStepArgs& args) const {
        return keeps && next < stored && length > 0;
    }

    // The head of a row of the block, counted from the block's first, and the channel there. By comparisons, as a division
    // takes more instructions.
    struct Channel {
        int head, channel;
    };
    __device__ __forceinline__ Channel channel_of(const ReplayStepArgs& args, int row) const {
        const int at = first_channel + row;
        int head = 0;
#pragma unroll
        for (int next_head = 1; next_head < ReplayStepConfig::kHeads; ++next_head) head += at >= next_head * args.channels;
        return {head, at - head * args.channels};
    }
    __device__ __forceinline__ int heads(const ReplayStepArgs& args) const { return channel_of(args, rows - 1).head + 1; }

    __device__ __forceinline__ Io* token_of(const Rows& tensor, int token, int tensor_head) const {
        return static_cast<Io*>(tensor.data) + sequence * tensor.batch + (start + token) * tensor.token +
               tensor_head * tensor.head;
    }
    __device__ __forceinline__ Io* ring_x(const ReplayStepArgs& args, int entry, int head) const {
        return static_cast<Io*>(args.ring_x) + slot * args.ring_x_slot + entry * args.ring_x_entry + head * args.ring_x_head;
    }
    __device__ __forceinline__ Io* ring_B(const ReplayStepArgs& args, int entry, int ring_group) const {
        return static_cast<Io*>(args.ring_B) + slot * args.ring_B_slot + entry * args.ring_B_entry +
               ring_group * args.ring_B_group;
    }
    __device__ __forceinline__ float* ring_delta(const ReplayStepArgs& args, int entry, int head) const {
        return args.ring_delta + slot * args.ring_delta_slot + entry * args.ring_delta_entry + head * args.ring_delta_head;
    }

  private:
    __device__ __forceinline__ void fill_own(const ReplayStepArgs& args, float x) const {
        fill(args, start, start + length, x);
    }
    // Fills the outputs of tokens [first, last) in this block's rows.
    __device__ __forceinline__ void fill(const ReplayStepArgs& args, i64 first, i64 last, float x) const {
        const int row = static_cast<int>(threadIdx.x);
        if (row >= rows) return;
        const Channel at = channel_of(args, row);
        Io* const outputs =
            static_cast<Io*>(args.out.data) + sequence * args.out.batch + (first_head + at.head) * args.out.head + at.channel;
#pragma unroll 1
        for (i64 token = first; token < last; ++token) outputs[token * args.out.token] = from_float<Io>(x);
    }
};

}  // namespace gdn_cuda::ssd
