// scan/selective_step: the types of a configuration, and which row, sequences and tokens a thread works for.
#pragma once

#include <gdn_cuda/kernels/common/vector.cuh>
#include <gdn_cuda/kernels/scan/exact_step.cuh>
#include <gdn_cuda/kernels/scan/selective_step/plan.cuh>

namespace gdn_cuda::scan {

// The i-th number of a vector.
template <class Element, int kCount, bool kAligned>
__device__ __forceinline__ float number_at(const Vector<Element, kCount, kAligned>& vector, int i) {
    return vector[i];
}
// By an instruction; the compiler would take two for the second number of a pair.
template <int kCount>
__device__ __forceinline__ float number_at(const Vector<__nv_bfloat16, kCount, true>& vector, int i) {
    const unsigned pair = reinterpret_cast<const Raw<4>*>(vector.items)[i / 2].bits;
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
}

template <SelectiveStepConfig kConfig>
struct StepTypes {
    static constexpr bool kComplex = is_complex(kConfig.state);
    static constexpr int kParts = kConfig.parts();
    using Element = Storage<kComplex ? DType::f32 : kConfig.state>;
    using Vector = gdn_cuda::Vector<Element, kConfig.vector * kParts, kConfig.aligned()>;
    using Wide = gdn_cuda::Vector<float, kConfig.vector * kParts, kConfig.aligned()>;  // the same numbers in fp32
    using Number = scan::Number<kComplex>;

    template <class AnyVector>
    __device__ __forceinline__ static Number at(const AnyVector& vector, int j) {
        if constexpr (kComplex)
            return Complex{vector[2 * j], vector[2 * j + 1]};
        else
            return number_at(vector, j);
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

// A row of the block, and a lane's part of it.
template <SelectiveStepConfig kConfig>
struct StepLane {
    int in_block;  // row
    bool exists;
    int of_state;  // row
    int head, d;
    int lane, lanes;

    __device__ __forceinline__ StepLane(const SelectiveStepArgs& args, int row, int lane)
        : in_block(row), lane(lane), lanes(1 << args.lane_bits) {
        const int in_group = static_cast<int>(blockIdx.x) * (kConfig.threads() >> args.lane_bits) + row;
        exists = in_group < args.group_rows;
        of_state = static_cast<int>(blockIdx.y) * args.group_rows + (exists ? in_group : 0);
        head = args.heads == 1 ? 0 : static_cast<int>(static_cast<unsigned>(of_state) / static_cast<unsigned>(args.dim));
        d = of_state - head * args.dim;
    }
    // How many of a block's first `count` items a thread has that moves this row's inputs and outputs, from `first` on.
    __device__ __forceinline__ int items_of(const SelectiveStepArgs& args, int first, int count) const {
        return exists ? (count - first + lanes - 1) >> args.lane_bits : 0;
    }
    // Whether there is anything for this lane in its row.
    __device__ __forceinline__ bool works(int columns) const { return exists && column(0) < columns; }
    // The column of a vector's first number.
    __device__ __forceinline__ int column(int vector) const { return (vector * lanes + lane) * kConfig.vector; }
    // Where this lane's part of the row starts in a state, in bytes.
    __device__ __forceinline__ i64 state_offset(const SelectiveStepArgs& args) const {
        return (static_cast<i64>(of_state) * args.columns + lane * kConfig.vector) * bytes_of(kConfig.state);
    }
    // Of a vector, from that of the lane's first.
    __device__ __forceinline__ int vector_offset(int vector) const {
        return vector * lanes * kConfig.vector * bytes_of(kConfig.state);
    }
};

// What the items of a block are: tokens of one sequence, or sequences with one token each. `first` is the first of those at
// work, `count` how many these are.
struct StepItems {
    bool one_token;
    int first_sequence, all;
    int first, count;

    __device__ __forceinline__ int sequence(int item) const {
        return one_token ? first_sequence + first + item : first_sequence;
    }
    __device__ __forceinline__ int token(int item) const { return one_token ? 0 : first + item; }
    __device__ __forceinline__ int in_block(int item) const { return one_token ? first + item : 0; }  // sequence
    // Where a tensor has the number of one of the block's items.
    template <class Tensor>
    __device__ __forceinline__ const char* address(const Tensor& of, int item, i64 offset) const {
        return static_cast<const char*>(of.values.data) + first_sequence * of.sequence + item * of.item + offset;
    }
};

}  // namespace gdn_cuda::scan
