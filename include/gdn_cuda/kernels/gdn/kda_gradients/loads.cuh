// The loads of a block of gdn/kda_gradients, by one thread.
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

// `place`: the chunk's tokens; index: of the chunk.
__device__ __forceinline__ void start_kda_gradient_loads(KdaGradientsPlan& shared, const KdaGradientsArgs& args,
                                                         const KdaPlace& place, int head, i64 index) {
    constexpr int kTile = sizeof(SwizzledTile);
    const auto chunk = static_cast<int>(head * args.call.from.chunks + index);
    const auto first = static_cast<int>(place.first), sequence = static_cast<int>(place.sequence);
    const auto& record = static_cast<const KdaTrainingRecord*>(args.call.from.prepared)[chunk];
    const bool two_part = record.factors.cancels != 0;
    const int dv = args.call.call.dv, value_tiles = (dv + kTileElements - 1) / kTileElements;
    Barrier &tokens_full = barrier(shared.tokens_full), &states_full = barrier(shared.states_full);
    tokens_full.arrive_and_expect_tx(value_tiles * (3 + two_part) * kTile + static_cast<int>(sizeof(KdaTrainingFactors)));
    states_full.arrive_and_expect_tx((value_tiles + 1) * 2 * kKdaTiles * kTile);
    cute::SM90_BULK_COPY_G2S::copy(&record.factors, reinterpret_cast<uint64_t*>(&tokens_full), &shared.factors,
                                   sizeof(KdaTrainingFactors));
    auto& to = shared.inputs;
#pragma unroll 1
    for (int i = 0; i < value_tiles; ++i) {
        const int value = i * kTileElements;
        const TileAt at{value, head, first, sequence};
        tma_load(to.output_gradient[i].bytes, args.output_gradient, at, tokens_full);
        tma_load(to.value_gradient[i].bytes, args.value_gradient, at, tokens_full);
        tma_load(to.error[i].bytes, args.errors, {value, 0, 0, chunk}, tokens_full);
        if (two_part) tma_load(to.error_residual[i].bytes, args.errors, {value, 1, 0, chunk}, tokens_full);
    }
#pragma unroll 1
    for (int i = 0; i < value_tiles * kKdaTiles; ++i) {
        const TileAt at{i % kKdaTiles * kTileElements, 0, i / kKdaTiles * kTileElements, chunk};
        tma_load(to.state[i / kKdaTiles][i % kKdaTiles].bytes, args.states, at, states_full);
        tma_load(to.state_gradient[i / kKdaTiles][i % kKdaTiles].bytes, args.state_gradients, at, states_full);
    }
#pragma unroll 1
    for (int tile = 0; tile < kKdaTiles; ++tile) {
        const TileAt at{tile * kTileElements, head, first, sequence};
        tma_load(shared.key[tile].bytes, args.key, at, states_full);
        tma_load(shared.query[tile].bytes, args.query, at, states_full);
    }
}

}  // namespace gdn_cuda::gdn
