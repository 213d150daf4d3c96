// gdn/ring_decode: where a block works, what the ring of its sequence holds, and what becomes of both.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/gdn/ring_decode/plan.cuh>

namespace gdn_cuda::gdn {

// Some rows of one head of one sequence.
template <RingDecodeConfig kConfig>
struct RingPlace {
    using Io = Storage<kConfig.io>;
    using Update = Storage<kConfig.updates()>;

    int sequence, head, key_head, first_row, rows;
    i64 slot;
    i64 accepted;  // how many of the last call's tokens
    i64 start;     // first token, along the token stride
    int length;    // new tokens
    int stored;    // entries of the ring that count
    bool asked;    // to write the state
    bool folds;    // it is written
    bool keeps;    // new tokens go to the ring
    int next;      // the entry for the first of them

    // Everything but the ring. The loads of the slot and of the accepted tokens are in flight afterwards.
    __device__ __forceinline__ explicit RingPlace(const RingDecodeArgs& args) {
        key_head = static_cast<int>(blockIdx.y);
        sequence = static_cast<int>(blockIdx.z);
        int value_head = static_cast<int>(blockIdx.x), row_block = 0;
        if (args.row_blocks > 1) {
            value_head = static_cast<int>(blockIdx.x / static_cast<unsigned>(args.row_blocks));
            row_block = static_cast<int>(blockIdx.x) - value_head * args.row_blocks;
        }
        head = key_head * args.heads_per_key + value_head;
        first_row = row_block * args.block_rows;
        rows = min(args.block_rows, args.dv - first_row);
        slot = args.slots.data == nullptr ? sequence : load_index(args.slots, sequence * args.slots_sequence);
        accepted = args.verifies() ? load_index(args.accepted, sequence) : 0;
        asked = args.fold || (args.fold_mask != nullptr && args.fold_mask[sequence]);
        const Span span = kConfig.tokens == 1 ? Span{0, args.tokens} : span_of(args.cu_seqlens, sequence, args.tokens);
        start = span.start;
        length = span.length;
    }
    // Whether there is room for the new tokens, in shared memory and in the ring.
    __device__ __forceinline__ bool has_room(const RingDecodeArgs& args) const {
        return kConfig.tokens == 1 || (length <= kConfig.tokens && (!args.verifies() || length <= args.entries));
    }
    // Returns whether the sequence is computed; if not, its outputs are filled.
    __device__ __forceinline__ bool has_slot(const RingDecodeArgs& args) const {
        if (kConfig.tokens > 1 && args.cu_seqlens.data != nullptr &&
            sequence == args.sequences - 1)  // tokens after the last one
            fill(args, start + length, args.tokens, 0.f);
        const Place where = place_of(args, slot);
        if (where == Place::run && has_room(args)) return true;
        fill_own(args, where == Place::skip ? 0.f : quiet_nan());
        return false;
    }
    // Returns whether there is anything to do. A count out of range fills the outputs with NaN.
    __device__ __forceinline__ bool read_ring(const RingDecodeArgs& args, i64 cursor) {
        const i64 before = cursor & ((1 << kRingPendingBits) - 1), more = max(accepted, i64{0});
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
    __device__ __forceinline__ int pending_after(const RingDecodeArgs& args) const {
        if (folds) return 0;
        return args.verifies() ? stored : stored + length;
    }
    // New tokens replace entries that other blocks may not have read yet.
    __device__ __forceinline__ bool overwrites() const { return keeps && next < stored && length > 0; }

    __device__ __forceinline__ Io* token_of(const Rows& tensor, int token, int tensor_head) const {
        return static_cast<Io*>(tensor.data) + sequence * tensor.batch + (start + token) * tensor.token +
               tensor_head * tensor.head;
    }
    __device__ __forceinline__ Io* ring_key(const RingDecodeArgs& args, int entry, int of_head) const {
        return static_cast<Io*>(args.keys) + slot * args.keys_slot + entry * args.keys_entry + of_head * args.keys_head;
    }
    __device__ __forceinline__ Update* ring_updates(const RingDecodeArgs& args, int entry) const {
        return static_cast<Update*>(args.updates) + slot * args.updates_slot + entry * args.updates_entry +
               head * args.updates_head + first_row;
    }
    __device__ __forceinline__ float* ring_decay(const RingDecodeArgs& args, int entry, int of_head) const {
        return args.decays + slot * args.decays_slot + entry * args.decays_entry + of_head * args.decays_head;
    }

  private:
    __device__ __forceinline__ void fill_own(const RingDecodeArgs& args, float x) const {
        fill(args, start, start + length, x);
    }
    // Fills the outputs of tokens [first, last) in this block's rows.
    __device__ __forceinline__ void fill(const RingDecodeArgs& args, i64 first, i64 last, float x) const {
        Io* outputs = static_cast<Io*>(args.output.data) + sequence * args.output.batch + head * args.output.head + first_row;
#pragma unroll 1
        for (i64 token = first; token < last; ++token)
            if (static_cast<int>(threadIdx.x) < rows) outputs[token * args.output.token + threadIdx.x] = from_float<Io>(x);
    }
};

}  // namespace gdn_cuda::gdn
