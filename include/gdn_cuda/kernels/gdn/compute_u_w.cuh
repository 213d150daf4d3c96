// gdn/compute_u_w: u = T (beta v) and w = T (beta exp(G) k) of every chunk, T = (I + A)^-1, in fp32 from bf16.
//
// A block takes one chunk of one value head: A in shared memory, then one column of [v | k] a thread, by forward substitution.
// No inverse is formed, so correlated keys with beta near 2 lose nothing.
//
// Bound: fp32 arithmetic and shared-memory reads on the CUDA cores. This is the plain kernel: it serves research and as a
// check.
#pragma once

#include <gdn_cuda/kernels/gdn/compute_u_w_plan.cuh>

namespace gdn_cuda::gdn {

// Solves (I + A) x = rhs for the columns of one tensor and writes x.
template <ComputeUWConfig kConfig, class RightHandSide>
__device__ __forceinline__ void solve_columns(ComputeUWSharedPlan<kConfig>& shared, const Rows& to, const ChunkPlace& place,
                                              int head, int count, int columns, RightHandSide&& rhs) {
    auto* out = static_cast<__nv_bfloat16*>(to.data) + place.sequence * to.batch + (place.start + place.first) * to.token +
                head * to.head;
    for (int column = threadIdx.x; column < columns; column += kConfig.threads) {
        for (int i = 0; i < count; ++i) {
            float x = rhs(i, column);
            for (int j = 0; j < i; ++j) x = fmaf(-shared.a[i][j], shared.columns[j][threadIdx.x], x);
            shared.columns[i][threadIdx.x] = x;
            out[i * to.token + column] = __float2bfloat16(x);
        }
    }
}

template <ComputeUWConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) compute_u_w(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ComputeUWSharedPlan<kConfig>*>(memory);

    const ChunkPlace place = place_of_chunk(args.cu_seqlens, args.sequences, args.tokens, kChunk, blockIdx.x);
    if (place.sequence < 0) return;
    const int head = blockIdx.y;
    const int count = min(kChunk, place.length - place.first);

    load_chunk(shared.key, args.key, place, head / args.heads_per_key, count, 0, args.dk);
    load_gates(shared.gate, args.gate, place, head, count);
    load_gates(shared.beta, args.beta, place, head, count);
    __syncthreads();
    for (int i = threadIdx.x; i < kChunk * kChunk; i += kConfig.threads) {
        const int row = i / kChunk, column = i % kChunk;
        if (row > column && row < count)
            shared.a[row][column] = shared.beta[row] * dot(shared.key[row], shared.key[column], args.dk) *
                                    expf(shared.gate[row] - shared.gate[column]);
    }
    __syncthreads();

    const auto* values = static_cast<const __nv_bfloat16*>(args.value.data) + place.sequence * args.value.batch +
                         (place.start + place.first) * args.value.token + head * args.value.head;
    solve_columns(shared, args.output, place, head, count, args.dv,
                  [&](int i, int column) { return shared.beta[i] * to_float(values[i * args.value.token + column]); });
    solve_columns(shared, args.w, place, head, count, args.dk,
                  [&](int i, int column) { return shared.beta[i] * expf(shared.gate[i]) * shared.key[i][column]; });
}

}  // namespace gdn_cuda::gdn
