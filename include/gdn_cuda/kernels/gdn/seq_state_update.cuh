// gdn/seq_state_update: the state before every chunk and after the last; v' = u - w S^T takes the place of u.
//
//     S <- exp(G_C) S + v'^T (exp(G_C - G) k)
//
// A block keeps a few value dimensions of one head's state in shared memory and walks over the chunks of one sequence: they
// depend on each other, rows of S do not.
//
// Bound: fp32 arithmetic and shared-memory reads on the CUDA cores. This is the plain kernel: it serves research and as a
// check.
#pragma once

#include <gdn_cuda/kernels/gdn/seq_state_update_plan.cuh>

namespace gdn_cuda::gdn {

template <SeqStateUpdateConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads) seq_state_update(const __grid_constant__ ChunkArgs args) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& shared = *reinterpret_cast<SeqStateUpdateSharedPlan<kConfig>*>(memory);

    const int sequence = blockIdx.x, head = blockIdx.y;
    const int first_row = blockIdx.z * kConfig.rows_per_block;
    const int rows = min(kConfig.rows_per_block, args.dv - first_row);
    const Span span = span_of(args.cu_seqlens, sequence, args.tokens);
    const i64 first_chunk = first_chunk_of(args, sequence);
    const auto for_state = [&](auto&& visit) {
        for (int i = threadIdx.x; i < rows * args.dk; i += kConfig.threads) visit(i / args.dk, i % args.dk);
    };
    const auto at = [&](i64 block, int row, int column) {
        return ((block * args.heads + head) * args.dv + first_row + row) * args.dk + column;
    };

    for_state([&](int row, int column) {
        const bool given = args.has_initial && span.length > 0 && first_chunk < args.state_chunks;
        shared.state[row][column] = given ? load_number({args.states, args.states_type}, at(first_chunk, row, column)) : 0.f;
    });

    for (int first = 0; first < span.length; first += kChunk) {
        const ChunkPlace place{sequence, first, span.start, span.length};
        const int count = min(kChunk, span.length - first);
        __syncthreads();
        load_chunk(shared.key, args.w, place, head, count, 0, args.dk);
        load_gates(shared.gate, args.gate, place, head, count);
        __syncthreads();

        for_state([&](int row, int column) {
            store_number(args.states, args.states_type, at(first_chunk + first / kChunk, row, column),
                         shared.state[row][column]);
        });
        auto* values = static_cast<__nv_bfloat16*>(args.value.data) + sequence * args.value.batch +
                       (span.start + first) * args.value.token + head * args.value.head + first_row;
        for (int i = threadIdx.x; i < count * rows; i += kConfig.threads) {
            const int token = i / rows, row = i % rows;
            const float value =
                to_float(values[token * args.value.token + row]) - dot(shared.key[token], shared.state[row], args.dk);
            values[token * args.value.token + row] = __float2bfloat16(value);
            shared.value[token][row] = value;
        }
        __syncthreads();

        load_chunk(shared.key, args.key, place, head / args.heads_per_key, count, 0, args.dk);
        __syncthreads();
        const float last_gate = shared.gate[count - 1];
        for_state([&](int row, int column) {
            float sum = expf(last_gate) * shared.state[row][column];
            for (int t = 0; t < count; ++t)
                sum = fmaf(shared.value[t][row], expf(last_gate - shared.gate[t]) * shared.key[t][column], sum);
            shared.state[row][column] = sum;
        });
    }

    if (!args.has_final) return;
    __syncthreads();
    for_state([&](int row, int column) {
        store_number(args.final_state, args.final_type, at(sequence, row, column), shared.state[row][column]);
    });
}

}  // namespace gdn_cuda::gdn
