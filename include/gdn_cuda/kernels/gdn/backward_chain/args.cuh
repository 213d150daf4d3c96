// Arguments of gdn/backward_prepare and gdn/backward_chain, and what the one hands to the other, for host and device. With a
// gate for every channel of the key, gdn/kda_prepare hands over KdaTrainingRecord in place of PreparedChunk.
#pragma once

#include <gdn_cuda/kernels/chunked/plan.cuh>
#include <gdn_cuda/kernels/gdn/backward/handover.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/segments.cuh>
#include <gdn_cuda/kernels/gdn/kda/training_record.cuh>
#include <gdn_cuda/kernels/gdn/summary/tails.cuh>

namespace gdn_cuda::gdn {

struct BackwardPrepareArgs : ChunkedArgs {
    static constexpr int first_chunk = 0;
    BackwardHandover to;
    int preparers;             // blocks of a sequence and head
    const SummaryTail* tails;  // of each pair, for the chain backward in time: what is prepared; nullptr: all chunks

    GDN_HOST_DEVICE constexpr int last_chunk(int pair, int chunks) const {
        return chunks - (tails == nullptr ? 0 : tails[pair].first_chunk);
    }
};

// As a call of the chunked form. Backward in time, the gradients of outputs are its values and those of values its outputs, and
// its states are gradients. Forward, R is its output, by chunk: (column, part, token, head and chunk). With gates of channels,
// `key` and `query` have no tensors, as records have their rows.
struct BackwardChainArgs : ChunkedArgs {
    BackwardHandover to;
    TensorMap states;  // S or E in `to`: (column, 0, row, head and chunk)
    ChainSegments chain;
    ListedSegments listed;  // with segments: in place of `chain`, backward in time; nothing of a chunk is stored
};

// T, P and factors of a chunk; for every configuration the same.
constexpr ChunkedConfig kAnyTraining{
    .head_k = 64, .value_groups = 1, .inverse_groups = 1, .stages = 2, .io = DType::bf16, .trains = true};
using PreparedChunk = CachedChunk<kAnyTraining>;

// What is prepared of a chunk with one gate a head, or with one a channel.
template <bool kChannels>
struct PreparedForChain {
    using Chunk = PreparedChunk;
    using Factors = CachedFactors<kAnyTraining>;
};
template <>
struct PreparedForChain<true> {
    using Chunk = KdaTrainingRecord;
    using Factors = KdaTrainingFactors;
};

// The place of a chunk in the handover: the one that begins `before` tokens after the sequence, which has its first at `start`.
GDN_HOST_DEVICE constexpr i64 prepared_index(const ChunkedArgs& args, const BackwardHandover& handover, int head, int sequence,
                                             i64 start, int before) {
    return head * handover.chunks + before / kChunk +
           first_chunk_index(args.call.cu_seqlens.data != nullptr, sequence, start, args.call.tokens);
}

}  // namespace gdn_cuda::gdn
