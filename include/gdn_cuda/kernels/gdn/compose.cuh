// Rows of a state on their way through S <- S M + L, one summary after another, in fp32. A block takes kRows rows of kColumns
// columns. kParts threads share a column of M, a part of its rows each in registers, and load those of the next summary before
// they multiply. Where all of M is 0, as after a reset, nothing is left of S, neither infinities nor NaN.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

template <int kColumns, int kRows, int kParts>
struct ComposedRows {
    static constexpr int kDepth = kColumns / kParts, kOwn = kRows / kParts;  // of a thread: rows of M, and of the state
    struct Shared {
        alignas(16) float state[kRows][kColumns];  // with zeros past dk
        float sums_of[kParts][kRows][kColumns];
    };

    Shared& shared;
    const int dk, column, part, first;  // first: of the thread's rows, in the state
    const int rows, depth;              // that exist of its own; may be more, or negative
    float m[kDepth], added[kOwn];       // of the next summary

    // first_row, last_row: the block's first row, and where rows end.
    __device__ __forceinline__ ComposedRows(Shared& shared, int dk, int first_row, int last_row)
        : shared(shared),
          dk(dk),
          column(static_cast<int>(threadIdx.x) % kColumns),
          part(static_cast<int>(threadIdx.x) / kColumns),
          first(first_row + part * kOwn),
          rows(column < dk ? last_row - first : 0),
          depth(column < dk ? dk - part * kDepth : 0) {}

    __device__ __forceinline__ void load_transition(const float* transition) {
        const float* from = transition + static_cast<i64>(part) * kDepth * dk + column;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            m[i] = i < depth ? *from : 0.f;
            from += dk;
        }
    }
    // A null pointer: zeros.
    __device__ __forceinline__ void load_rows(const float* state) {
#pragma unroll
        for (int row = 0; row < kOwn; ++row)
            added[row] = state != nullptr && row < rows ? state[static_cast<i64>(first + row) * dk + column] : 0.f;
    }
    __device__ __forceinline__ void store_rows(float* state, const float (&values)[kOwn]) const {
#pragma unroll
        for (int row = 0; row < kOwn; ++row)
            if (row < rows) state[static_cast<i64>(first + row) * dk + column] = values[row];
    }
    // Starts from the rows that were loaded.
    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int row = 0; row < kOwn; ++row) shared.state[part * kOwn + row][column] = added[row];
    }
    // The rows after a summary, which has been loaded; load_next loads another one meanwhile.
    template <class LoadNext>
    __device__ __forceinline__ void follow(float (&found)[kOwn], LoadNext&& load_next) {
        float current[kDepth];
        bool is_any = false;
#pragma unroll
        for (int i = 0; i < kDepth; ++i) {
            current[i] = m[i];
            is_any |= m[i] != 0.f;
        }
#pragma unroll
        for (int row = 0; row < kOwn; ++row) found[row] = added[row];
        load_next();
        const bool is_left = __syncthreads_or(is_any);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < kDepth; i += 4) {
                const float4 s = *reinterpret_cast<const float4*>(&shared.state[row][part * kDepth + i]);
                sum =
                    fmaf(s.x, current[i], fmaf(s.y, current[i + 1], fmaf(s.z, current[i + 2], fmaf(s.w, current[i + 3], sum))));
            }
            shared.sums_of[part][row][column] = is_left ? sum : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int row = 0; row < kOwn; ++row) {
            const int at = part * kOwn + row;
#pragma unroll
            for (int each = 0; each < kParts; ++each) found[row] += shared.sums_of[each][at][column];
            shared.state[at][column] = found[row];
        }
    }
};

}  // namespace gdn_cuda::gdn
