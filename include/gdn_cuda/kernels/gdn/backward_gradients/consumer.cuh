// How roles of gdn/backward_gradients take work: items, their value heads, and slabs of these.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_gradients/loads.cuh>
#include <gdn_cuda/kernels/hopper/tile_products.cuh>

namespace gdn_cuda::gdn {

enum GradientsBarriers : int { kConsumersBarrier, kColumnsBarrier };
static_assert(kColumnsBarrier < kWarpgroupBarrier);

template <HopperGradientsConfig kRoleConfig>
struct GradientsConsumer : Lane {
    static constexpr HopperGradientsConfig kConfig = kRoleConfig;
    static constexpr DType kIo = kConfig.io;
    static constexpr int kKeyTiles = kConfig.key_tiles;
    using Plan = HopperGradientsPlan<kConfig>;
    using Stage = GradientsStage<kConfig>;
    using Io = Storage<kIo>;

    Plan& shared;
    const HopperGradientsArgs& args;
    int heads = 0, slabs = 0;  // taken so far

    __device__ __forceinline__ GradientsConsumer(Plan& shared, const HopperGradientsArgs& args) : shared(shared), args(args) {
        find_lane();
    }

    __device__ __forceinline__ int row(int half) const { return 16 * warp + g + 8 * half; }
    __device__ __forceinline__ int slabs_of_head() const { return (args.call.dv + kTileElements - 1) / kTileElements; }

    // This warp has read what is released, or written what the barrier hands over.
    __device__ __forceinline__ void arrive(unsigned long long& word) const {
        __syncwarp();
        if (lane == 0) barrier(word).arrive();
    }
    template <class T>
    static __device__ __forceinline__ T uniform(T x) {  // warp-uniform for the compiler
        return __shfl_sync(0xffffffffu, x, 0);
    }
    // Whether the residual of R counts, once the head's first slab has arrived.
    __device__ __forceinline__ bool two_part() const { return uniform(shared.scalars[Stage(heads).index].cancels) != 0; }

    // Zeroes queries and keys past the end of a packed sequence: they are the next one's, and may be infinite or NaN. What else
    // is past the end is zero already, or in rows that are not used.
    __device__ __forceinline__ void clear_tail(typename Plan::Tokens& tokens, int count) const {
        constexpr int kThreads = (1 + kKeyTiles) * kWarpgroup, kTiles = 2 * kKeyTiles;
        const int index = (group - HopperGradientsConfig::kTokensGroup) * kWarpgroup + thread;
        auto* const tiles = reinterpret_cast<SwizzledTile*>(&tokens);
#pragma unroll 1
        for (int i = index; i < (kChunk - count) * kTiles * 8; i += kThreads)
            store_shared(row_vector(tile_row(tiles[i / 8 % kTiles].bytes, count + i / (8 * kTiles)), i % 8), uint4{});
        cutlass::arch::fence_view_async_shared();
        NamedBarrier::sync(kThreads, kConsumersBarrier);
    }

    // Calls visit(work, tokens) for each of the block's items. kMultiplies: by a role that multiplies them.
    template <bool kMultiplies = true, class Visit>
    __device__ __forceinline__ void for_each_item(Visit&& visit) {
#pragma unroll 1
        for (int item = 0;; ++item) {
            const Stage stage(item);
            barrier(shared.tokens_full[stage.index]).wait(stage.parity);
            const GradientsWork& work = shared.work[stage.index];
            if (uniform(work.key_head) < 0) return;
            auto& tokens = shared.tokens[stage.index];
            if constexpr (kMultiplies)
                if (const int count = uniform(work.count); count < kChunk && args.call.cu_seqlens.data != nullptr) [[unlikely]]
                    clear_tail(tokens, count);
            visit(work, tokens);
            arrive(shared.tokens_empty[stage.index]);
        }
    }
};

}  // namespace gdn_cuda::gdn
