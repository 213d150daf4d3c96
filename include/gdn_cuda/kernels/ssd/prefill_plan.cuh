// Configuration and shared memory of ssd/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/hopper/warpgroup.cuh>
#include <gdn_cuda/kernels/ssd/scan_plan.cuh>

namespace gdn_cuda::ssd {

constexpr int kSharedBytes = 227 * 1024;
constexpr int kFactorSlots = 4;

struct SsdConfig {
    DType io;
    int states;     // 64, 128 or 256; fewer are padded with zeros
    int row_tiles;  // of a block, of heads of one group
    bool outputs;   // else states alone
    bool gated;     // out is multiplied by silu(z)

    constexpr bool operator==(const SsdConfig&) const = default;

    GDN_FIELDS(io, states, row_tiles, outputs, gated)

    // Two row tiles of 256 states leave no registers for an inputs role: there the scores role has its work.
    GDN_HOST_DEVICE constexpr bool has_inputs_role() const { return states < 256 || row_tiles == 1; }
    // Warpgroup order: inputs, scores, then one for each row tile.
    GDN_HOST_DEVICE constexpr int scores_group() const { return has_inputs_role() ? 1 : 0; }
    GDN_HOST_DEVICE constexpr int warpgroups() const { return scores_group() + 1 + row_tiles; }
    GDN_HOST_DEVICE constexpr int threads() const { return warpgroups() * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int state_tiles() const { return states / kTileElements; }
    // A stage holds a chunk's B and x of each row tile, for outputs C and z too.
    GDN_HOST_DEVICE constexpr int stage_tiles(int rows) const {
        return (outputs ? 2 : 1) * state_tiles() + rows * (gated ? 2 : 1);
    }
    GDN_HOST_DEVICE constexpr int slots() const { return gated && states >= 128 ? 1 : 2; }
    // What a step forms of a row tile: M, or a state that is stored.
    GDN_HOST_DEVICE constexpr int formed_tiles() const { return outputs ? slots() : state_tiles(); }
    GDN_HOST_DEVICE constexpr int stages() const {
        constexpr int kFactors = (7 * kChunk + 4 + 2) * 4, kRest = 1024;
        const int left = kSharedBytes - kRest -
                         row_tiles * (formed_tiles() * static_cast<int>(sizeof(SwizzledTile)) + kFactorSlots * kFactors);
        const int fit = left / (stage_tiles(row_tiles) * static_cast<int>(sizeof(SwizzledTile)));
        return fit < 4 ? fit : 4;
    }
    // setmaxnreg per role. What threads have at the launch is all there is: a role that asked for more would wait forever.
    GDN_HOST_DEVICE constexpr int inputs_registers() const { return 32; }
    GDN_HOST_DEVICE constexpr int scores_registers() const { return states == 256 ? 72 : 64; }
    GDN_HOST_DEVICE constexpr int row_registers() const { return row_tiles == 1 ? 240 : states == 256 ? 216 : 208; }
    GDN_HOST_DEVICE constexpr bool fits_registers() const {
        const int asked = (has_inputs_role() ? inputs_registers() : 0) + scores_registers() + row_tiles * row_registers();
        return asked <= 65536 / threads() / 8 * 8 * warpgroups();
    }
};

template <SsdConfig kConfig, bool kOutputs = kConfig.outputs>
struct SsdFormed {
    // M, one for each row tile, and zero above the diagonal; tiles of the same head use that of its first tile.
    SwizzledTile scores[kConfig.slots()][kConfig.row_tiles];
};
template <SsdConfig kConfig>
struct SsdFormed<kConfig, false> {
    SwizzledTile chunk_state[kConfig.row_tiles][kConfig.state_tiles()];
};
template <SsdConfig kConfig>
struct SsdPlan : SsdFormed<kConfig> {
    static_assert(kConfig.stages() >= 2 && kConfig.fits_registers());
    struct Stage {
        SwizzledTile B[kConfig.state_tiles()], x[kConfig.row_tiles], C[kConfig.state_tiles()];
        SwizzledTile z[kConfig.gated ? kConfig.row_tiles : 1];
    };
    // Tiles that a step does not need, of C and z, are not there.
    static constexpr int kStageBytes = kConfig.stage_tiles(kConfig.row_tiles) * static_cast<int>(sizeof(SwizzledTile));
    // A head's values for the tokens of a chunk. G: its gates, sums of δA from the chunk's first token on, in log2.
    struct alignas(16) Factors {
        ChunkSteps steps;
        float before[kChunk];  // exp(G), of the state before the chunk in a token's output
        float after[kChunk];   // δ exp(G_end - G), of a token in the state after the chunk
        // A decay between tokens of different blocks of 16 is a product, exp(G_i - G_j) = row_i between column_j. row: from the
        // last token before i's block; column: to the last of j's block; between these two: 1 of neighbours, else
        // between[i's block + j's - 1].
        float row[kChunk], column[kChunk], between[4];
        float added[kChunk];  // column_j δ_j
    };
    // Whether a decay between two tokens may be 0; mixed: some tokens decay and some grow.
    enum class Resets : int { none, some, mixed };
    struct End {
        float decay;  // exp(G_end); -0 if a token's own decay is 0 (by_token.cuh)
        Resets resets;
    };
    // A step uses stage (step % stages) of what is loaded, and slot (step % slots) of what is formed from it.
    alignas(1024) unsigned char stages[kConfig.stages()][kStageBytes];
    Factors factors[kFactorSlots][kConfig.row_tiles];
    End ends[kFactorSlots][kConfig.row_tiles];
    SsdWork work;
    // mbarriers: who arrives -> who waits.
    //     stage_full     TMA -> scores, rows
    //     stage_used     each warp of the rows has read the stage, and its outputs are in place of x -> inputs, storing
    //     stage_empty    inputs: the outputs are stored -> inputs, loading
    //     factors_full   inputs: each head's warp -> scores, rows
    //     factors_empty  each warp of the rows has read them -> inputs
    //     scores_full    scores: M, and what is past the sequence is cleared -> rows
    //     scores_empty   each warp of the rows has read them -> scores
    unsigned long long stage_full[kConfig.stages()], stage_used[kConfig.stages()], stage_empty[kConfig.stages()];
    unsigned long long factors_full[kFactorSlots], factors_empty[kFactorSlots];
    unsigned long long scores_full[kConfig.slots()], scores_empty[kConfig.slots()];
};

}  // namespace gdn_cuda::ssd
