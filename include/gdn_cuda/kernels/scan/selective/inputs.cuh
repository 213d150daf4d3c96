// The tensors of a selective scan as its forward and backward kernels read them. Strides count elements and are 0 for a
// dimension of size 1; an absent tensor has null data.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

// Tokens of a chunk: forward stores the state before each chunk for backward. Chunks are numbered from first_chunk (tile.cuh)
// on.
inline constexpr int kStateChunk = 64;

// u, delta, z, delta_a, and outputs of their shape. Either the channel's or the token's stride is 1 (0 for a size of 1).
struct ChannelRows {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
};

// A, B or C, read as floats: the imaginary part of a complex number is `pair` floats after its real part, and strides count
// floats. Channel d reads group d / (dim / groups). A constant tensor has a group for every channel, and batch and token
// strides of 0.
struct Coefficients {
    void* data = nullptr;
    DType type = DType::f32;  // a float, or each part of a complex number, has it
    bool varies = false;
    int groups = 0;
    i64 batch = 0, group = 0, n = 0, token = 0, pair = 0;
};

// Sequences split along their tokens into segments of `length` tokens, each with blocks of its own; the last one has what
// remains. Every sequence has `count` of them, of which the last are empty for shorter packed sequences.
struct Segments {
    int count = 1, length = 0;  // the length is a multiple of kStateChunk
};

// A segment maps the state x before it to product x + end; in reverse, it maps the gradient of the state after it to that of
// the state before it. scan/selective_pieces writes both. From them scan/selective_starts computes the states before each
// segment, or in reverse the gradients after it, in place of `ends`. (count, sequences, dim, N), in A's dtype.
struct SegmentMaps {
    void *ends = nullptr, *products = nullptr;
};

// Segments of a sequence taken in turn by blocks of one launch, so that its blocks are many and short and fill the last wave:
// each block hands its states on to that of the next segment, in reverse their gradients. A block waits only for one before it
// in the grid, and every GPU seen so far dispatches a grid's blocks in order.
struct Turns {
    unsigned* done = nullptr;  // (segments, sequences, blocks of a sequence): how often they have been handed on
    unsigned wanted = 0;       // so often in this launch; 0: blocks take no turns
    void* states = nullptr;    // (segments, sequences, dim, N) in A's dtype: for each segment

    GDN_HOST_DEVICE bool taken() const { return wanted != 0; }
};

// What a block works on: channels of one group of B and C, in one sequence or segment.
struct SelectivePlace {
    int channel, channels;  // the first channel, and how many of the block's channels exist
    int sequence, batch, length;
    i64 start;  // first token of the sequence or segment in its row of the batch
};

struct SelectiveInputs {
    ChannelRows u, delta, z, delta_a;
    Coefficients A, B, C;
    const float *D = nullptr, *delta_bias = nullptr;  // (dim), contiguous
    const void* initial_state = nullptr;              // (sequences, dim, N) in A's dtype, contiguous
    Tagged cu_seqlens = {};                           // null: sequence s is row s of the batch
    int batch = 0, dim = 0, length = 0, state_size = 0, sequences = 0;
    bool delta_softplus = false;
};

}  // namespace gdn_cuda::scan
