// The loads of a block of gdn/kda_gradients, by one thread.
#pragma once

#include <gdn_cuda/kernels/common/tma.cuh>
#include <gdn_cuda/kernels/gdn/kda_gradients/plan.cuh>

namespace gdn_cuda::gdn {

// A chunk's tokens, its index, and the block's place: `part` of the channels.
struct KdaGradientsPlace {
    KdaPlace tokens;
    i64 chunk;
    int head, part;

    __device__ __forceinline__ int channel() const { return part * KdaGradientsConfig::kChannels; }
};
__device__ __forceinline__ KdaGradientsPlace kda_gradients_place(const KdaPlace& tokens, const GdnCall& call) {
    const int both = KdaGradientsConfig::blocks(call.dk) - 1;  // 0 or 1
    const auto block = static_cast<int>(blockIdx.x);
    return {.tokens = tokens, .chunk = block >> both, .head = static_cast<int>(blockIdx.y), .part = block & both};
}

__device__ __forceinline__ void start_kda_row_loads(KdaGradientsPlan& shared, const KdaGradientsArgs& args,
                                                    const KdaGradientsPlace& place) {
    const TileAt at{place.channel(), place.head, static_cast<int>(place.tokens.first), static_cast<int>(place.tokens.sequence)};
    Barrier& full = barrier(shared.rows_full);
    full.arrive_and_expect_tx(sizeof(KdaGradientsPlan::Rows));
    tma_load(shared.rows.key.bytes, args.key, at, full);
    tma_load(shared.rows.query.bytes, args.query, at, full);
}
// All loads but, where R has a residual, those of keys and queries, whose place that has first.
__device__ __forceinline__ void start_kda_gradient_loads(KdaGradientsPlan& shared, const KdaGradientsArgs& args,
                                                         const KdaGradientsPlace& place) {
    constexpr int kTile = sizeof(SwizzledTile);
    const auto chunk = static_cast<int>(place.head * args.call.from.chunks + place.chunk);
    const auto first = static_cast<int>(place.tokens.first), sequence = static_cast<int>(place.tokens.sequence);
    const auto& record = static_cast<const KdaTrainingRecord*>(args.call.from.prepared)[chunk];
    const bool two_part = record.factors.cancels != 0;
    const int dv = args.call.call.dv, value_tiles = (dv + kTileElements - 1) / kTileElements;
    Barrier &tokens_full = barrier(shared.tokens_full), &states_full = barrier(shared.states_full);
    tokens_full.expect_transaction(value_tiles * 3 * kTile + static_cast<int>(sizeof(KdaTrainingFactors)));
    states_full.arrive_and_expect_tx(value_tiles * 2 * kTile);
    cute::SM90_BULK_COPY_G2S::copy(&record.factors, reinterpret_cast<uint64_t*>(&tokens_full), &shared.factors,
                                   sizeof(KdaTrainingFactors));
    auto& to = shared.inputs;
#pragma unroll 1
    for (int i = 0; i < value_tiles; ++i) {
        const int value = i * kTileElements;
        const TileAt at{value, place.head, first, sequence}, state{place.channel(), 0, value, chunk};
        tma_load(to.output_gradient[i].bytes, args.output_gradient, at, tokens_full);
        tma_load(to.value_gradient[i].bytes, args.value_gradient, at, tokens_full);
        tma_load(to.error[i].bytes, args.errors, {value, 0, 0, chunk}, tokens_full);
        tma_load(to.state[i].bytes, args.states, state, states_full);
        tma_load(to.state_gradient[i].bytes, args.state_gradients, state, states_full);
    }
    if (two_part) [[unlikely]] {
        tokens_full.arrive_and_expect_tx(value_tiles * kTile);
#pragma unroll 1
        for (int i = 0; i < value_tiles; ++i)
            tma_load(shared.error_residual[i].bytes, args.errors, {i * kTileElements, 1, 0, chunk}, tokens_full);
    } else {
        tokens_full.arrive();
        start_kda_row_loads(shared, args, place);
    }
}

}  // namespace gdn_cuda::gdn
