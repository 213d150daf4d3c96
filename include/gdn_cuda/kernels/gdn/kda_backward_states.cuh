// gdn/kda_backward_states: the two chains of Kimi Delta Attention's backward on the tensor cores of any GPU from sm_80 on, 16
// tokens a chunk, from what gdn/kda_backward_prepare has left of each.
//
// Forward in time, states again, for what gradients need of them:
//     X = v - (gamma k) S^T    R = (I + N diag(beta))^-1 X    S <- S diag(Gamma) + (beta R)^T (kappa k)
// stores S before each chunk, and R in two 16-bit parts.
//
// Backward in time, their gradients, from that of the final state:
//     dV' = P^T dO + (kappa k) E^T    Y = (I + diag(beta) N)^-T dV'    dV = beta Y
//     E <- E diag(Gamma) + dO^T (scale gamma q) - dV^T (gamma k)
// stores E before each of its chunks, the gradient of the state after it; Y and dV; and the gradient of the initial state.
//
// A block takes a segment of a sequence (KdaBackwardSegments), a value head and 64 rows of the state, 16 a warp, in registers
// from chunk to chunk. Products of a chunk's tokens are of nearly fp32 accuracy, and beta R and dV are two 16-bit parts: keys
// that repeat make them cancel. A beta of 0 divides nothing.
//
// Bound: latency of a chunk's phases, 2.5 us backwards and 1.8 us forwards on an H200 with head_k 128; a warp a scheduler
// issues in 30 % of cycles, and registers let three.
#pragma once

#include <gdn_cuda/kernels/gdn/kda_backward/rows.cuh>

namespace gdn_cuda::gdn {

template <class Owner>
__device__ __forceinline__ void step_states(Owner& own, const typename Owner::Stage& stage, int chunk) {
    using Io = typename Owner::Io;
    const KdaBackwardHandover& to = own.args.to;
    typename Owner::TokenTile x, products, errors;
    own.multiply_keys(products, stage.key_in, to.states, chunk);
    unsigned values[4];
    own.load_values(values, stage);
    own.as_floats(x, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i / 4][i % 4] -= products[i / 4][i % 4];
    own.clear(errors);
    own.add_product(errors, x, stage.inverse);
    unsigned parts[2][4];
    own.in_two_parts(parts, errors);
    if (to.errors != nullptr) {
        Io* const rows = static_cast<Io*>(to.errors) + own.index_of(chunk) * 2 * kKdaTokens * own.args.dv + own.own_row();
#pragma unroll
        for (int part = 0; part < 2; ++part)
            own.store_tokens(rows + part * kKdaTokens * own.args.dv, own.args.dv, kKdaTokens, parts[part]);
    }
    own.scale_by_beta(errors, stage);
    own.in_two_parts(parts, errors);
    own.decay_state(stage);
    own.add_tokens(parts, stage.key_out);
}

template <class Owner>
__device__ __forceinline__ void step_gradients(Owner& own, const typename Owner::Stage& stage, int chunk) {
    using Io = typename Owner::Io;
    const KdaBackwardStatesArgs& args = own.args;
    typename Owner::TokenTile x, products, gradients;
    own.multiply_keys(products, stage.key_out, args.to.state_gradients, chunk);
    unsigned outputs[1][4];
    own.load_values(outputs[0], stage);
    own.as_floats(x, outputs[0]);
    own.add_product(products, x, stage.scores);
    own.clear(gradients);
    own.add_product(gradients, products, stage.inverse);
    unsigned parts[2][4];
    if (args.to.by_error != nullptr) {
        as_left<Owner::kIo>(parts[0], gradients[0], gradients[1]);
        Io* const rows = static_cast<Io*>(args.to.by_error) + own.index_of(chunk) * kKdaTokens * args.dv + own.own_row();
        own.store_tokens(rows, args.dv, kKdaTokens, parts[0]);
    }
    own.scale_by_beta(gradients, stage);
    as_left<Owner::kIo>(parts[0], gradients[0], gradients[1]);
    if (args.value_gradient.data != nullptr)
        own.store_tokens(
            static_cast<Io*>(args.value_gradient.data) + own.first_element(args.value_gradient, chunk) + own.own_row(),
            args.value_gradient.token, own.tokens_in(chunk), parts[0]);
#pragma unroll
    for (int i = 0; i < 8; ++i) gradients[i / 4][i % 4] = -gradients[i / 4][i % 4];
    own.in_two_parts(parts, gradients);
    own.decay_state(stage);
    own.add_tokens(outputs, stage.query_in);
    own.add_tokens(parts, stage.key_in);
}

template <KdaBackwardStatesConfig kConfig>
__global__ void __launch_bounds__(kConfig.threads(), kConfig.least_blocks())
    kda_backward_states(const __grid_constant__ KdaBackwardStatesArgs args) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<KdaChainPlan<kConfig>*>(memory);
    static_assert(sizeof(shared) <= kSharedBytesEverywhere);
    constexpr int kAhead = kConfig.stages() - 1;

    KdaRows<kConfig> own(shared, args);
    const int start = own.segment;
    if (!own.find_chunks()) return;
#pragma unroll
    for (int chunk = 0; chunk < kAhead; ++chunk) {
        own.load_chunk(chunk);
        cp_async_fence();
    }
    own.load(start);
#pragma unroll 1
    for (int chunk = 0; chunk < own.chunks; ++chunk) {
        cp_async_wait<kAhead - 1>();
        __syncthreads();  // the chunk has arrived, and no warp reads the one before it
        own.load_chunk(chunk + kAhead);
        cp_async_fence();
        const auto& stage = shared.stages[chunk % kConfig.stages()];
        if constexpr (kConfig.direction == Direction::backward)
            step_gradients(own, stage, chunk);
        else
            step_states(own, stage, chunk);
    }
    own.store_last();
}

}  // namespace gdn_cuda::gdn
