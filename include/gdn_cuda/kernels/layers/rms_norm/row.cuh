// Rows of layers/rms_norm and layers/rms_norm_backward: positions of a thread's elements, loads and stores, reductions over a
// row, and the scale that keeps squares in fp32's range.
#pragma once

#include <gdn_cuda/kernels/common/inverse_root.cuh>
#include <gdn_cuda/kernels/common/silu.cuh>
#include <gdn_cuda/kernels/common/to_floats.cuh>
#include <gdn_cuda/kernels/layers/rms_norm/plan.cuh>

namespace gdn_cuda::layers {

// Range of mean squares in which no significant square is subnormal and no sum is infinite.
inline constexpr float kLeastMeanSquare = 1e-30f, kMostMeanSquare = 1e30f;

// 2^-e for the exponent e of x >= 0, between 2^-126 and 2^127.
__device__ __forceinline__ float inverse_magnitude(float x) {
    const int exponent = __float_as_int(x) >> 23 & 255;
    return __int_as_float(max(254 - exponent, 1) << 23);
}

struct Gated {
    float value, derivative;
};
// The sigmoid of a gate; its product with g = -infinity is NaN, like torch's silu. kMayFlush: 0 for g below -87. For 16-bit
// gates the rounding error of g log2(e) is negligible.
template <RmsNormConfig kConfig, bool kMayFlush>
__device__ __forceinline__ float gate_sigmoid(float g) {
    return kMayFlush && kConfig.has_short_gate() ? silu_gate(g) : sigmoid(g);
}
template <RmsNormConfig kConfig, bool kMayFlush>
__device__ __forceinline__ Gated gate_and_derivative(GateActivation activation, float g) {
    float power, s;
    if constexpr (kMayFlush && kConfig.has_short_gate()) {
        power = exp2_fast(at_most(g * -1.44269504f, 127.f));
        s = reciprocal_fast(1.f + power);
    } else {
        power = exp_fast(at_most(-g, 88.f));
        s = __fdividef(1.f, 1.f + power);
    }
    const float sigmoid_slope = s * (power * s);  // s - s^2 would lose its digits for large g
    if (activation == GateActivation::sigmoid) return {s, sigmoid_slope};
    return {g * s, fmaf(g, sigmoid_slope, s)};
}

// A thread's elements of one row of a tensor, unconverted.
template <RmsNormConfig kConfig, bool kIsIo>
struct RmsNormRaw {
    static constexpr int kCount = kConfig.per_lane;
    static constexpr bool kVectors = kConfig.vectors;
    using T = Storage<kConfig.io>;
    using Elements = Vector<T, 8, true>;

    // Vectors, or the bits of single elements with a run-time dtype (kIsIo: the configuration's dtype).
    Elements vectors[kVectors ? kCount / 8 : 1];
    unsigned bits[kVectors ? 1 : kCount];

    __device__ __forceinline__ float to_float(int i, DType type) const {
        if constexpr (kVectors) return vectors[i / 8][i % 8];
        return gdn_cuda::to_float(bits[i], kIsIo ? kConfig.io : type);
    }
    __device__ __forceinline__ void unpack(float (&to)[kCount], DType type) const {
        if constexpr (kVectors) {
#pragma unroll
            for (int i = 0; i < kCount; i += 8) to_floats(to + i, vectors[i / 8]);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) to[i] = to_float(i, type);
        }
    }
};

template <RmsNormConfig kConfig>
struct RmsNormPlace {
    static constexpr int kCount = kConfig.per_lane;
    using T = Storage<kConfig.io>;

    const RmsNormArgs& args;
    int lane = threadIdx.x % kConfig.lanes;
    int row_in_block = static_cast<int>(threadIdx.x) / kConfig.lanes;

    __device__ __forceinline__ bool exists(unsigned row) const { return row < static_cast<unsigned>(args.rows); }
    // Chunks per row; more than one only if kConfig.is_long.
    __device__ __forceinline__ int chunks() const {
        return kConfig.is_long ? static_cast<int>(ceil_div(args.columns, kConfig.columns())) : 1;
    }
    // Column of element i: with vectors a thread has eight contiguous columns, else adjacent threads have adjacent columns.
    __device__ __forceinline__ int column(int chunk, int i) const {
        const int first = chunk * kConfig.columns();
        if constexpr (kConfig.vectors) return first + (i / 8 * kConfig.lanes + lane) * 8 + i % 8;
        return first + i * kConfig.lanes + lane;
    }
    __device__ __forceinline__ bool has(int chunk, int i) const { return column(chunk, i) < args.columns; }

    // Offset of a row's first element in this block's group of columns.
    __device__ __forceinline__ i64 offset(const RmsNormTensor& x, unsigned row) const {
        unsigned remaining = row;
        i64 at = static_cast<i64>(blockIdx.y) * args.columns * x.column;
        for (int d = args.dims - 1; d > 0; --d) {
            const unsigned outer = remaining / args.sizes[d];
            at += (remaining - outer * args.sizes[d]) * x.strides[d];
            remaining = outer;
        }
        return at + remaining * x.strides[0];
    }
    __device__ __forceinline__ i64 result_offset(i64 row) const { return (row * args.groups + blockIdx.y) * args.columns; }

    // Elements past the row's end and rows past the last are zeros.
    template <bool kIsIo>
    __device__ __forceinline__ void load(RmsNormRaw<kConfig, kIsIo>& to, const RmsNormTensor& from, i64 at, int chunk,
                                         bool exists) const {
        if constexpr (kConfig.vectors) {
            const T* const data = static_cast<const T*>(from.values.data) + at;
#pragma unroll
            for (int i = 0; i < kCount; i += 8) {
                to.vectors[i / 8].clear();
                if (exists && has(chunk, i)) to.vectors[i / 8].load(data + column(chunk, i));
            }
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                to.bits[i] = 0;
                if (exists && has(chunk, i)) to.bits[i] = load_raw(from.values, at + column(chunk, i) * from.column);
            }
        }
    }
    __device__ __forceinline__ void load_weight(float (&weight)[kCount], int chunk) const {
        const Tagged& from = args.weight;
        const i64 group = static_cast<i64>(blockIdx.y) * args.columns;
#pragma unroll
        for (int i = 0; i < kCount; ++i) weight[i] = 1.f;
        if (from.data == nullptr) return;
        if constexpr (kConfig.vectors) {
#pragma unroll
            for (int i = 0; i < kCount; i += 8)
                if (has(chunk, i)) load_eight(&weight[i], from, group + column(chunk, i));
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i)
                if (has(chunk, i)) weight[i] = load_float(from, (group + column(chunk, i)) * args.weight_column);
        }
    }
    __device__ __forceinline__ static void load_eight(float* to, const Tagged& from, i64 at) {
        if (from.type == DType::f32) {
            Vector<float, 8, true> wide;
            wide.load(static_cast<const float*>(from.data) + at);
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i] = wide[i];
        } else {
            Vector<unsigned short, 8, true> narrow;
            narrow.load(static_cast<const unsigned short*>(from.data) + at);
#pragma unroll
            for (int i = 0; i < 8; ++i) to[i] = to_float(narrow.items[i], from.type);
        }
    }
    // Stores to a contiguous result of dtype `type`, which with vectors is the configuration's.
    __device__ __forceinline__ void store(void* to, DType type, i64 row, int chunk, const float (&from)[kCount]) const {
        const i64 at = result_offset(row);
        if constexpr (kConfig.vectors) {
#pragma unroll
            for (int i = 0; i < kCount; i += 8) {
                Vector<T, 8, true> out;
#pragma unroll
                for (int j = 0; j < 8; ++j) out.set(j, from[i + j]);
                if (has(chunk, i)) out.store(static_cast<T*>(to) + at + column(chunk, i));
            }
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i)
                if (has(chunk, i)) store_float(to, type, at + column(chunk, i), from[i]);
        }
    }
};

// Sums and maxima of up to two values over the threads of a row; every thread gets them, with the same order of summation.
template <RmsNormConfig kConfig>
struct RmsNormReduction {
    RmsNormSharedPlan<kConfig>& shared;
    int turn = 0;

    template <int kValues, class Combine>
    __device__ __forceinline__ void reduce(float (&x)[kValues], const Combine& combine) {
        constexpr int kLanes = kConfig.row_is_block() ? 32 : kConfig.lanes;
#pragma unroll
        for (int step = kLanes / 2; step > 0; step /= 2)
#pragma unroll
            for (int v = 0; v < kValues; ++v) x[v] = combine(x[v], __shfl_xor_sync(0xffffffffu, x[v], step));
        if constexpr (kConfig.row_is_block()) {
            auto& buffer = shared.sums[turn];
            turn ^= 1;
            if (threadIdx.x % 32 == 0)
#pragma unroll
                for (int v = 0; v < kValues; ++v) buffer[v][threadIdx.x / 32] = x[v];
            __syncthreads();
#pragma unroll
            for (int v = 0; v < kValues; ++v) {
                x[v] = buffer[v][0];
#pragma unroll
                for (int warp = 1; warp < kConfig.warps(); ++warp) x[v] = combine(x[v], buffer[v][warp]);
            }
        }
    }
    template <int kValues>
    __device__ __forceinline__ void sum(float (&x)[kValues]) {
        reduce(x, [](float a, float b) { return a + b; });
    }
    __device__ __forceinline__ float most(float x) {
        float values[1] = {x};
        reduce(values, [](float a, float b) { return fmaxf(a, b); });
        return values[0];
    }
};

// Whether a row's squares were in fp32's range, judged by mean + eps.
__device__ __forceinline__ bool in_range(float mean_square) {
    return mean_square > kLeastMeanSquare && mean_square < kMostMeanSquare;
}
// Whether any row of this warp was out of range: the warp's rows are recomputed together.
__device__ __forceinline__ bool out_of_range(float mean_square) {
    return __any_sync(0xffffffffu, !in_range(mean_square));
}

}  // namespace gdn_cuda::layers
