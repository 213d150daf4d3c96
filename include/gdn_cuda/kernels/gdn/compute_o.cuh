// gdn/compute_o: the outputs of every chunk from the state before it.
//
//     o = scale (exp(G) q S^T + [(q_i.k_j) exp(G_i - G_j)]_{i>=j} v')
//
// A block takes one chunk of one value head; the scores stay in shared memory, states and v' are read through the caches.
//
// Bound: fp32 arithmetic and shared-memory reads on the CUDA cores. This is the plain kernel: it serves research and as a
// check.
#pragma once

#include <gdn_cuda/kernels/gdn/compute_o_plan.cuh>

namespace gdn_cuda::gdn {

template <ComputeOConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) compute_o(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<ComputeOSharedPlan<kConfig>*>(memory);

    const ChunkPlace place = place_of_chunk(args.cu_seqlens, args.sequences, args.tokens, kChunk, blockIdx.x);
    if (place.sequence < 0) return;
    const int head = blockIdx.y;
    const int count = min(kChunk, place.length - place.first);

    load_chunk(shared.query, args.query, place, head / args.heads_per_key, count, 0, args.dk);
    load_chunk(shared.key, args.key, place, head / args.heads_per_key, count, 0, args.dk);
    load_gates(shared.gate, args.gate, place, head, count);
    __syncthreads();
    for (int i = threadIdx.x; i < kChunk * kChunk; i += kConfig.threads) {
        const int row = i / kChunk, column = i % kChunk;
        if (row >= column && row < count)
            shared.scores[row][column] =
                dot(shared.query[row], shared.key[column], args.dk) * expf(shared.gate[row] - shared.gate[column]);
    }
    __syncthreads();

    const i64 state = ((static_cast<i64>(blockIdx.x) * args.heads + head) * args.dv) * args.dk;
    const i64 first_token = place.start + place.first;
    const auto row_of = [&](const Rows& rows) {
        return static_cast<__nv_bfloat16*>(rows.data) + place.sequence * rows.batch + first_token * rows.token +
               head * rows.head;
    };
    const __nv_bfloat16* values = row_of(args.value);
    __nv_bfloat16* outputs = row_of(args.output);
    for (int i = threadIdx.x; i < count * args.dv; i += kConfig.threads) {
        const int token = i % count, row = i / count;  // a warp shares one row of S
        float from_state = 0.f;
        for (int d = 0; d < args.dk; ++d)
            from_state =
                fmaf(shared.query[token][d],
                     load_number({args.states, args.states_type}, state + static_cast<i64>(row) * args.dk + d), from_state);
        float sum = expf(shared.gate[token]) * from_state;
        for (int j = 0; j <= token; ++j) sum = fmaf(shared.scores[token][j], to_float(values[j * args.value.token + row]), sum);
        outputs[token * args.output.token + row] = __float2bfloat16(args.scale * sum);
    }
}

}  // namespace gdn_cuda::gdn
