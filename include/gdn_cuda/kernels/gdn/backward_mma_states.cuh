// gdn/backward_mma_states: the two chains of the backward on the tensor cores of any GPU from sm_80 on, 64 tokens a chunk, as
// gdn/prefill_mma computes outputs.
//
// Forward in time, states again, for what gradients need of them:
//     X = v - exp(G) k S^T    V' = T X    R = V' / beta    S <- exp(G_C) S + V'^T exp(G_C - G) k
// stores S before each chunk, and R.
//
// Backward in time, their gradients, from that of the final state:
//     dV' = P^T dO + exp(G_C - G) k E^T    dV = T^T dV'    E <- exp(G_C) E + (scale exp(G) dO)^T q - (exp(G) dV)^T k
// stores E before each of its chunks, the gradient of the state after it; dV; the gradient of the initial state; and the
// scalars of each chunk.
//
// A block takes a sequence, a value head and 64 or 128 rows of the state, 16 per warp, in registers from chunk to chunk. T, P,
// V', R, dV' and dV are two 16-bit parts in every product, as keys that repeat make their products cancel. Chunks that reset
// the state need no other path: finite inputs give finite products.
//
// Bound: latency of a chunk's phases, as in gdn/prefill_mma: on an H200 9.3 us a chunk, with 8 heads as with 32.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_mma_states/step.cuh>
#include <gdn_cuda/kernels/gdn/chunked_mma/tokens.cuh>

namespace gdn_cuda::gdn {

// The scalars of a chunk, by the block of the first rows.
template <class Owner>
__device__ __forceinline__ void store_scalars(const Owner& own, ChunkScalars& to, bool qk_norm, float scale) {
    if (own.work.first_row > 0 || own.thread >= kChunk) return;
    const MmaFactors& factors = own.shared.factors;
    const int token = own.thread;
    const float beta = factors.beta[token];
    to.gate[token] = factors.gate[token];
    to.beta[token] = beta;
    to.key_norm[token] = factors.key_row[token] / beta;
    to.query_norm[token] = scale != 0.f ? factors.query_row[token] / scale : 1.f;
}

// Whether entries of T cancel, by one warp of the same block, once T is complete.
template <class Owner>
__device__ __forceinline__ void store_cancels(const Owner& own, ChunkScalars& to) {
    if (own.work.first_row > 0 || own.warp > 0) return;
    // A lane's 16 bytes of each block: half of a row.
    const int row = own.lane / 2, vector = own.lane % 2 ^ row / 4 % 2;
    unsigned largest = 0;
#pragma unroll
    for (int column = 0; column < kInverseWarps; ++column)
#pragma unroll
        for (int below = column; below < kInverseWarps; ++below) {
            const TwoPartBlock& block = as_two_parts(own.shared.inverse.block(below, column));
            const uint4 eight = load_shared(shared_address(block.parts[0]) + 16 * own.lane);
            const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int ahead = row - 8 * vector - 2 * i;  // of the pair's first column
                const bool diagonal = below == column && ahead >= 0 && ahead < 2;
                largest = larger<Owner::kIo>(largest, pairs[i] & (!diagonal    ? 0xffffffffu
                                                                  : ahead == 0 ? 0xffff0000u
                                                                               : 0xffffu));
            }
        }
    const float2 both = unpack<Owner::kIo>(largest);
    const bool cancels = __any_sync(0xffffffffu, fmaxf(both.x, both.y) > kCancelThreshold);
    if (own.lane == 0) to.cancels = cancels;
}

template <BackwardStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.blocks_at_least())
    backward_mma_states(const __grid_constant__ BackwardStatesArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<BackwardStatesPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    using Owner = MmaRows<kConfig>;
    using Io = typename Owner::Io;
    constexpr bool kBackward = kConfig.direction == Direction::backward;

    const GdnCall& call = args.call;
    const int sequence = blockIdx.z, head = blockIdx.y, first_row = static_cast<int>(blockIdx.x) * kConfig.rows_per_block();
    if (threadIdx.x == 0) {
        const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
        shared.work = work_of_block<kConfig>(call, sequence, span, sequence, head, first_row);
        shared.first_index =
            head * args.to.chunks + first_chunk_index(call.cu_seqlens.data != nullptr, sequence, span.start, call.tokens);
    }
    __syncthreads();

    MmaTokens<kConfig> tokens(shared, call);
    Owner own(shared, call, args.state);
    tokens.load_keys(0);
    if constexpr (kBackward) tokens.load_queries(0);
    cp_async_fence();
    own.load_values(own.vectors(), 0);
    cp_async_fence();
    tokens.issue_scalar_loads(0);
    own.load();
#pragma unroll 1
    for (int chunk = 0; chunk < shared.work.chunks; ++chunk) {
        cp_async_wait<1>();  // all but the values
        __syncthreads();     // keys and queries have arrived, and no warp reads the last chunk's any more
        tokens.prepare(chunk);
        cp_async_fence();
        cp_async_wait<1>();  // all but the next keys
        own.refresh();
        __syncwarp();  // every lane's values have arrived
        const i64 index = shared.first_index + own.in_time(chunk);
        const MmaTile* keys = shared.key[chunk % kConfig.key_stages];
        MmaLane::TokenSums products;
        auto* const states = static_cast<Io*>(kBackward ? args.to.state_gradients : args.to.states);
        multiply_keys(own, products, keys, states + index * call.dv * call.dk);
        if constexpr (kBackward) {
            store_scalars(own, args.to.scalars[index], call.qk_norm, call.scale);
        }
        TokenOperands x;
        if constexpr (!kBackward) form_x(own, x, products);
        tokens.finish();
        __syncthreads();  // T and P are complete
        own.refresh();
        if constexpr (kBackward) {
            store_cancels(own, args.to.scalars[index]);
            add_scores(own, products);
            own.refresh();
            add_queries(own);
            own.refresh();
            MmaLane::TokenSums gradients;
            apply_inverse_transposed(own, gradients, products);
            own.stage(own.value_tile(), gradients);
            own.refresh();
            subtract_keys(own, gradients, keys);
            __syncthreads();  // no warp reads the queries any more
            tokens.load_next_queries(chunk);
        } else {
            own.apply_inverse(products, x);
            stage_errors(own, products, shared.query[own.warp / 4]);
            own.decay_state();
            own.add_tokens(products, shared.factors.update, keys);
        }
        tokens.load_next_keys(chunk);
        cp_async_fence();
        if constexpr (kBackward) {
            own.store_output_and_load_values(chunk);
        } else {
            const auto mine = own.vectors();
            const int count = mine.row < call.dv ? kChunk : 0;  // tokens past the end have zeros
            Io* const to = static_cast<Io*>(args.to.errors) + (2 * index * kChunk + mine.token) * call.dv + mine.row;
            const unsigned residual = mine.shared - shared_address(shared.value) + shared_address(shared.query);
            if (kConfig.head_k > 192 || args.to.scalars[index].cancels != 0)
                own.store_staged(residual, to + kChunk * call.dv, call.dv, count, [] {});
            own.store_staged(mine.shared, to, call.dv, count, [&] { own.load_values(mine, chunk + 1); });
        }
        cp_async_fence();
    }
    own.store_last();
}

}  // namespace gdn_cuda::gdn
