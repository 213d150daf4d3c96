// What a chain stores of each chunk for gdn/backward_gradients.
#pragma once

#include <gdn_cuda/kernels/chunked/state_owner.cuh>
#include <gdn_cuda/kernels/gdn/backward_chain/args.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ const BackwardHandover& handover_of(const Owner& own) {
    return static_cast<const BackwardChainArgs&>(own.args).to;
}
// The chunk's place in the handover, among those of all heads.
template <class Owner>
__device__ __forceinline__ i64 handover_index(const Owner& own, int chunk) {
    const ChunkedWork& work = own.work;
    return work.head * handover_of(own).chunks +
           first_chunk_index(is_packed(own.args), work.sequence, work.tokens.start, own.args.call.tokens) +
           in_time<Owner::kConfig>(work.tokens, chunk);
}

// The owner's rows of its state, rounded as the chunk's products read it, into (dv, dk) matrices.
template <class Owner>
__device__ __forceinline__ void store_rounded_state(const Owner& own, void* states, i64 index) {
    using Io = Storage<Owner::kIo>;
    const int rows = own.rows(), columns = own.columns();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = own.my_row() + 8 * half;
        Io* const to = static_cast<Io*>(states) + (index * own.args.call.dv + row) * columns + 2 * own.t;
#pragma unroll
        for (int n = 0; n < 2 * Owner::kStateSteps; ++n)
            if (row < rows && 8 * n < columns)
                *reinterpret_cast<unsigned*>(to + 8 * n) = own.rounded_state[n / 2][n % 2 * 2 + half];
    }
}

// A chunk's scalars, by the owner of the first rows.
template <class Owner>
__device__ __forceinline__ void store_scalars(const Owner& own, i64 index, int stage, bool cancels) {
    if (own.work.first_row > 0 || own.index() > 0 || own.thread >= kChunk) return;
    const auto& factors = own.shared.factors[stage];
    ChunkScalars& to = handover_of(own).scalars[index];
    to.gate[own.thread] = factors.gate[own.thread];
    to.beta[own.thread] = factors.beta[own.thread];
    to.query_norm[own.thread] = factors.query_norm[own.thread];
    to.key_norm[own.thread] = factors.key_norm[own.thread];
    if (own.thread == 0) to.cancels = cancels;
}

}  // namespace gdn_cuda::gdn
