// Configuration, shared memory and arguments of ssd/prefill_mma, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/mma_lane.cuh>
#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

using gdn::kMmaTileElements;
using gdn::MmaTile;

struct SsdMmaConfig {
    DType io;
    int states;     // 64, 128 or 256; fewer are padded with zeros
    int row_tiles;  // of a block, of heads of one group
    int stages;     // chunks of B and C in shared memory; 2: the next chunk is loaded during this one
    bool gated;     // out is multiplied by silu(z)

    constexpr bool operator==(const SsdMmaConfig&) const = default;

    GDN_FIELDS(io, states, row_tiles, stages, gated)

    GDN_HOST_DEVICE constexpr int threads() const { return row_tiles * kTileThreads; }
    // On an SM, by registers: twice 64 states fit.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return states == 64 ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int state_tiles() const { return states / kMmaTileElements; }
};

template <SsdMmaConfig kConfig>
struct SsdMmaPlan {
    // What all warps read of a chunk.
    struct Stage {
        MmaTile C[kConfig.state_tiles()], B[kConfig.state_tiles()];
        ChunkSteps steps[kConfig.row_tiles];  // of each head
    };
    Stage stages[kConfig.stages];
    // x of each row tile, then z of each. A warp reads and writes only its 16 channels. Outputs overwrite x.
    MmaTile x[kConfig.row_tiles * (kConfig.gated ? 2 : 1)];
    // M^T of each head from the diagonal on: a row for each token that is added.
    struct alignas(128) Block {
        unsigned char bytes[16 * 16 * 2];  // MmaLane::block_vector
    };
    static constexpr int kBlocks = 10;
    GDN_HOST_DEVICE static constexpr int block_of(int column, int row) { return column * (column + 1) / 2 + row; }
    Block scores[kConfig.row_tiles][kBlocks];
    // A head's values for the tokens of a chunk: exp(G), of the state before the chunk in a token's output, and
    // δ exp(G_end - G), of a token in the state after the chunk.
    struct alignas(16) Factors {
        float before[kChunk], after[kChunk];
        // In either half of the tokens, whether a factor of the state is 0, and whether a token's own decay is.
        bool resets[2], at_once[2];
    };
    Factors factors[kConfig.row_tiles];
    SsdWork work;
};

struct SsdMmaArgs {
    SsdArgs scan;  // without its tensor maps
    Rows x, z, B, C;
    Rows out_gradient;  // the second pass's x; its B is C
};

}  // namespace gdn_cuda::ssd
