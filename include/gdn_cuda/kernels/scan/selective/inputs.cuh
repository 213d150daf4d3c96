// The tensors of a selective scan as its kernels read them, forward and backward. Every tensor is read through strides, counted
// in elements, which are 0 for a dimension of size 1; an absent tensor has null data.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

// Forward keeps the state before every such number of tokens for backward. Chunks are numbered as in place_of_chunk.
inline constexpr int kStateChunk = 64;

// u, delta, z, delta_a and what is shaped like them. The stride of the channel or of the token is 1 (0 if there is one).
struct ChannelRows {
    void* data = nullptr;
    i64 batch = 0, channel = 0, token = 0;
};

// A, B or C, as real numbers: a complex one is (real, imaginary), `pair` real numbers apart, and strides count real numbers.
// Channel d reads group d / (dim / groups). A constant one has a group for every channel, and no stride over batch and token.
struct Coefficients {
    void* data = nullptr;
    DType type = DType::f32;  // of the real numbers
    bool varies = false;
    int groups = 0;
    i64 batch = 0, group = 0, n = 0, token = 0, pair = 0;
};

// Sequences cut along their tokens, so that each has several blocks at work: into pieces of `length` tokens, the last with what
// remains. All have the same number of them, of which the last ones are empty where packed sequences are shorter.
struct Pieces {
    int count = 1, length = 0;  // the length is a multiple of kStateChunk
};

// A piece takes a state x before it to product x + end, and in reverse the gradient of a state behind it to that of the state
// before it. scan/selective_pieces writes both, and from them scan/selective_starts the states before each piece, or the
// gradients behind it, in place of `ends`. (count, sequences, dim, N), as A's numbers.
struct PieceMaps {
    void *ends = nullptr, *products = nullptr;
};

// The place of a block: channels of one group of B and C, in one sequence or a piece of it.
struct SelectivePlace {
    int channel, channels;  // the first, and how many exist
    int sequence, batch, length;
    i64 start;  // of the sequence or piece in its row of the batch
};

struct SelectiveInputs {
    ChannelRows u, delta, z, delta_a;
    Coefficients A, B, C;
    const float *D = nullptr, *delta_bias = nullptr;  // (dim), contiguous
    const void* initial_state = nullptr;              // (sequences, dim, N) as A's numbers, contiguous
    Tagged cu_seqlens = {};                           // null: sequence s is row s of the batch
    int batch = 0, dim = 0, length = 0, state_size = 0, sequences = 0;
    bool delta_softplus = false;
};

}  // namespace gdn_cuda::scan
