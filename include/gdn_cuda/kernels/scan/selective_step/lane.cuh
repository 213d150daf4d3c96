// scan/selective_step: the types of a configuration, and which rows, sequences and tokens a thread computes.
#pragma once

#include <gdn_cuda/kernels/common/to_floats.cuh>
#include <gdn_cuda/kernels/scan/exact_step.cuh>
#include <gdn_cuda/kernels/scan/selective_step/plan.cuh>

namespace gdn_cuda::scan {

template <SelectiveStepConfig kConfig>
struct StepTypes {
    static constexpr bool kComplex = is_complex(kConfig.state);
    static constexpr int kParts = kConfig.parts();
    using Element = Storage<kComplex ? DType::f32 : kConfig.state>;
    using Vector = gdn_cuda::Vector<Element, kConfig.vector * kParts, kConfig.aligned()>;
    using Wide = gdn_cuda::Vector<float, kConfig.vector * kParts, kConfig.aligned()>;  // the same elements in fp32
    using Number = scan::Number<kComplex>;

    template <class AnyVector>
    __device__ __forceinline__ static Number at(const AnyVector& vector, int j) {
        if constexpr (kComplex)
            return Complex{vector[2 * j], vector[2 * j + 1]};
        else
            return element_at(vector, j);
    }
    __device__ __forceinline__ static void set(Vector& vector, int j, const Number& x) {
        if constexpr (kComplex) {
            vector.set(2 * j, x.re);
            vector.set(2 * j + 1, x.im);
        } else {
            vector.set(j, x);
        }
    }
};

// A row of the block, and a lane's slice of it.
template <SelectiveStepConfig kConfig>
struct StepLane {
    int in_block;  // the row in the block
    bool exists;
    int state_row;  // the row in a state
    int head, d;
    int lane, lanes;

    __device__ __forceinline__ StepLane(const SelectiveStepArgs& args, int row, int lane)
        : in_block(row), lane(lane), lanes(1 << args.lane_bits) {
        const int in_group = static_cast<int>(blockIdx.x) * (kConfig.threads() >> args.lane_bits) + row;
        exists = in_group < args.group_rows;
        state_row = static_cast<int>(blockIdx.y) * args.group_rows + (exists ? in_group : 0);
        head = args.heads == 1 ? 0 : static_cast<int>(static_cast<unsigned>(state_row) / static_cast<unsigned>(args.dim));
        d = state_row - head * args.dim;
    }
    // How many of the block's first `count` items, every lanes-th from `first` on, belong to the thread that moves this row's
    // inputs and outputs.
    __device__ __forceinline__ int items_of(const SelectiveStepArgs& args, int first, int count) const {
        return exists ? (count - first + lanes - 1) >> args.lane_bits : 0;
    }
    // Whether the lane has elements of its row.
    __device__ __forceinline__ bool works(int columns) const { return exists && column(0) < columns; }
    // The column of a vector's first element.
    __device__ __forceinline__ int column(int vector) const { return (vector * lanes + lane) * kConfig.vector; }
    // Offset in bytes of the lane's slice of the row in a state.
    __device__ __forceinline__ i64 state_offset(const SelectiveStepArgs& args) const {
        return (static_cast<i64>(state_row) * args.columns + lane * kConfig.vector) * bytes_of(kConfig.state);
    }
    // Offset in bytes of a vector from the lane's first one.
    __device__ __forceinline__ int vector_offset(int vector) const {
        return vector * lanes * kConfig.vector * bytes_of(kConfig.state);
    }
};

// A block's items: tokens of one sequence, or sequences with one token each. The current ones are `count` items from `first`
// on.
struct StepItems {
    bool one_token;
    int first_sequence;
    int origin;  // of addresses, along `sequence`: first_sequence, or in packed batches the sequence's first token
    int all;
    int first, count;

    __device__ __forceinline__ int sequence(int item) const {
        return one_token ? first_sequence + first + item : first_sequence;
    }
    __device__ __forceinline__ int token(int item) const { return one_token ? 0 : first + item; }
    __device__ __forceinline__ int in_block(int item) const {
        return one_token ? first + item : 0;
    }  // the sequence in the block
    // Address of an element of one of the block's items.
    template <class Tensor>
    __device__ __forceinline__ const char* address(const Tensor& x, int item, i64 offset) const {
        return static_cast<const char*>(x.values.data) + origin * x.sequence + item * x.item + offset;
    }
};

}  // namespace gdn_cuda::scan
