// gdn/fold_states: states through the summaries of consecutive parts, S <- S M + L, or back, E <- E M^T + L, in fp32. A block
// takes a few rows of a sequence and head, which it keeps in shared memory. A few threads share a column of M. Where all of M
// is 0, as after a reset, nothing is left of S, neither infinities nor NaN. The state after each part may replace its L.
//
// Bound: latency, as parts follow one another: 4 us each with 32 heads of 128/128 on an H200, a tenth of memory's throughput.
// Every block reads all of M, from L2.
#pragma once

#include <gdn_cuda/kernels/gdn/fold_states_plan.cuh>

namespace gdn_cuda::gdn {

__device__ __forceinline__ bool is_aligned(const FoldedMatrices& matrices) {
    const i64 steps = matrices.part | matrices.sequence | matrices.head;
    return reinterpret_cast<unsigned long long>(matrices.data) % sizeof(float4) == 0 && steps % 4 == 0;
}

template <FoldStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads()) fold_states(const __grid_constant__ FoldStatesArgs args) {
    constexpr int kColumns = kConfig.columns, kRows = kConfig.rows, kSlices = kConfig.slices(), kDepth = kColumns / kSlices,
                  kAtOnce = 16;
    alignas(16) __shared__ float state[kRows][kColumns];
    __shared__ float sums[kSlices][kRows][kColumns];
    const unsigned heads = args.heads, sequence = blockIdx.x / heads, head = blockIdx.x - sequence * heads;
    const int column = static_cast<int>(threadIdx.x) % kColumns, slice = static_cast<int>(threadIdx.x) / kColumns,
              first_row = static_cast<int>(blockIdx.y) * kRows, dk = args.dk;
    const auto offset = [&](const FoldedMatrices& matrices, int part) {
        return part * matrices.part + sequence * matrices.sequence + head * matrices.head;
    };
    const i64 first = static_cast<i64>(first_row) * dk + column, own = static_cast<i64>(blockIdx.x) * args.dv * dk + first;
    const float* const start = args.state.data + offset(args.state, 0) + first;
    // Backwards a thread's values are a row of M, and those of a warp are far apart.
    const bool by_vectors = args.reverse && dk % 4 == 0 && is_aligned(args.transitions);
    const auto has = [&](int row) { return column < dk && first_row + row < args.dv; };
#pragma unroll
    for (int row = slice; row < kRows; row += kSlices) state[row][column] = has(row) ? start[row * dk] : 0.f;
#pragma unroll 1
    for (int i = 0; i < args.parts; ++i) {
        const int part = args.reverse ? args.parts - 1 - i : i;
        const float* m = args.transitions.data + offset(args.transitions, part) + (args.reverse ? column * dk : column);
        const int step = args.reverse ? 1 : dk;
        float found[kRows]{};
        bool is_any = false;
        __syncthreads();  // the state has been written
#pragma unroll 1
        for (int depth = slice * kDepth; depth < (slice + 1) * kDepth; depth += kAtOnce) {
            float values[kAtOnce];
            if (by_vectors) {
#pragma unroll
                for (int j = 0; j < kAtOnce; j += 4) {
                    const bool inside = column < dk && depth + j < dk;
                    const float4 four = inside ? *reinterpret_cast<const float4*>(&m[depth + j]) : float4{};
                    values[j] = four.x, values[j + 1] = four.y, values[j + 2] = four.z, values[j + 3] = four.w;
                }
            } else {
#pragma unroll
                for (int j = 0; j < kAtOnce; ++j) values[j] = column < dk && depth + j < dk ? m[(depth + j) * step] : 0.f;
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) is_any |= values[j] != 0.f;
#pragma unroll
            for (int row = 0; row < kRows; ++row)
#pragma unroll
                for (int j = 0; j < kAtOnce; j += 4) {
                    const float4 s = *reinterpret_cast<const float4*>(&state[row][depth + j]);
                    found[row] = fmaf(s.x, values[j],
                                      fmaf(s.y, values[j + 1], fmaf(s.z, values[j + 2], fmaf(s.w, values[j + 3], found[row]))));
                }
        }
        const bool is_left = __syncthreads_or(is_any);
#pragma unroll
        for (int row = 0; row < kRows; ++row) sums[slice][row][column] = is_left ? found[row] : 0.f;
        __syncthreads();
        const i64 place = offset(args.additions, part) + first;
#pragma unroll
        for (int row = slice; row < kRows; row += kSlices) {
            float sum = has(row) ? args.additions.data[place + row * dk] : 0.f;
#pragma unroll
            for (int each = 0; each < kSlices; ++each) sum += sums[each][row][column];
            state[row][column] = sum;
            if (args.every != nullptr && has(row)) args.every[place + row * dk] = sum;
        }
    }
    if (args.out == nullptr) return;
#pragma unroll
    for (int row = slice; row < kRows; row += kSlices)
        if (has(row)) args.out[own + row * dk] = state[row][column];
}

}  // namespace gdn_cuda::gdn
