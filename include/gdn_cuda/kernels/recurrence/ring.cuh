// Rings of tokens that the states in a pool lack: what the ring of a block's sequence holds, and what becomes of it.
#pragma once

#include <gdn_cuda/kernels/common/state_slots.cuh>
#include <gdn_cuda/kernels/common/varlen.cuh>
#include <gdn_cuda/kernels/recurrence/ring_plan.cuh>

namespace gdn_cuda {

// The base of a kernel's `Block`, which has fill(args, first, last, x): fills the outputs of tokens [first, last) in its rows.
// kTokens: the most new ones of a sequence; 1: not packed.
template <class Block, class Args, class Io, int kTokens>
struct RingSequence {
    int sequence;
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
    __device__ __forceinline__ void load_sequence(const Args& args) {
        sequence = static_cast<int>(blockIdx.z);
        slot = args.slots.data == nullptr ? sequence : load_index(args.slots, sequence * args.slots_sequence);
        accepted = args.verifies() ? load_index(args.accepted, sequence) : 0;
        asked = args.fold || (args.fold_mask != nullptr && args.fold_mask[sequence]);
        const Span span = kTokens == 1 ? Span{0, args.tokens} : span_of(args.cu_seqlens, sequence, args.tokens);
        start = span.start;
        length = span.length;
    }
    // Whether there is room for the new tokens, in shared memory and in the ring.
    __device__ __forceinline__ bool has_room(const Args& args) const {
        return kTokens == 1 || (length <= kTokens && (!args.verifies() || length <= args.entries));
    }
    // Returns whether the sequence is computed; if not, its outputs are filled.
    __device__ __forceinline__ bool has_slot(const Args& args) const {
        if (kTokens > 1 && args.cu_seqlens.data != nullptr && sequence == args.sequences - 1)  // tokens after the last one
            block().fill(args, start + length, args.tokens, 0.f);
        const Place where = place_of(args, slot);
        if (where == Place::run && has_room(args)) return true;
        fill_own(args, where == Place::skip ? 0.f : quiet_nan());
        return false;
    }
    __device__ __forceinline__ i64 load_cursor(const Args& args) const { return load_index({args.pending, DType::i32}, slot); }
    // Returns whether there is anything to do. A count out of range fills the outputs with NaN.
    __device__ __forceinline__ bool read_ring(const Args& args, i64 cursor) {
        const i64 before = cursor & ((1 << kRingPendingBits) - 1), more = max(accepted, i64{0});
        const i64 all = more > args.entries ? more : before + more;
        if (all > args.entries) {
            fill_own(args, quiet_nan());
            return false;
        }
        stored = static_cast<int>(all);
        const bool fits = stored + length <= args.entries;
        folds = (asked || !fits) && pending_of_all(args) > 0;
        keeps = args.verifies() || !folds;
        next = folds ? 0 : stored;
        return stored + length > 0;
    }
    // New tokens replace entries that other blocks may not have read yet.
    __device__ __forceinline__ bool overwrites() const { return keeps && next < stored && length > 0; }

    // Counts the block, whose part of the ring has arrived. Returns the count before it, which is_last takes: whether all
    // others of the sequence have read the ring.
    __device__ __forceinline__ unsigned count_block(const Args& args) const {
        return atomicAdd(args.pending + slot, 1u << kRingPendingBits);
    }
    __device__ __forceinline__ static bool is_last(unsigned before) {
        return (before >> kRingPendingBits) + 1 == gridDim.x * gridDim.y;
    }
    __device__ __forceinline__ void store_cursor(const Args& args) const {
        args.pending[slot] = folds ? 0u : static_cast<unsigned>(pending_of_all(args));
    }

    template <class T>
    __device__ __forceinline__ T* ring_at(const RingTensor& ring, int entry, int head) const {
        return static_cast<T*>(ring.data) + slot * ring.slot + entry * ring.entry + head * ring.head;
    }
    __device__ __forceinline__ Io* token_of(const Rows& tensor, int token, int head) const {
        return static_cast<Io*>(tensor.data) + sequence * tensor.batch + (start + token) * tensor.token + head * tensor.head;
    }

  private:
    __device__ __forceinline__ const Block& block() const { return static_cast<const Block&>(*this); }
    __device__ __forceinline__ int pending_of_all(const Args& args) const { return args.verifies() ? stored : stored + length; }
    __device__ __forceinline__ void fill_own(const Args& args, float x) const { block().fill(args, start, start + length, x); }
};

}  // namespace gdn_cuda
