// Configuration, shared memory and arguments of ssd/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::ssd {

using gdn::kChunk;

constexpr int kChannels = 64;  // of a head
constexpr int kSharedBytes = 227 * 1024;

struct SsdConfig {
    DType io;
    int states;  // 64 or 128
    int heads;   // of a block, all of one group
    bool gated;  // out is multiplied by silu(z)

    constexpr bool operator==(const SsdConfig&) const = default;

    GDN_FIELDS(io, states, heads, gated)

    // Warpgroup order: one that loads chunks and forms scores, then one for each head.
    GDN_HOST_DEVICE constexpr int threads() const { return (1 + heads) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int state_tiles() const { return states / kTileElements; }
    // Of one chunk: C and B, and for each head x and z.
    GDN_HOST_DEVICE constexpr int stage_tiles(int own_heads) const { return 2 * state_tiles() + own_heads * (gated ? 2 : 1); }
    GDN_HOST_DEVICE constexpr int slots() const { return gated && states == 128 ? 1 : 2; }
    GDN_HOST_DEVICE constexpr int stages() const {
        constexpr int kFactors = 1024 + 16, kRest = 1024;
        const int left = kSharedBytes - kRest - slots() * heads * (static_cast<int>(sizeof(SwizzledTile)) + kFactors);
        const int fit = left / (stage_tiles(heads) * static_cast<int>(sizeof(SwizzledTile)));
        return fit < 4 ? fit : 4;
    }
    // setmaxnreg per role. With three heads a role of a head would have 152, too few for wgmmas in a row.
    GDN_HOST_DEVICE constexpr int scores_registers() const { return 88; }
    GDN_HOST_DEVICE constexpr int head_registers() const { return 208; }
};

// What a block has to do: some heads of a group, of one sequence. Kept out of registers.
struct SsdWork {
    int sequence, batch, group, first_head, heads;
    int start, length, chunks;  // start: the first token
};

template <SsdConfig kConfig>
struct SsdPlan {
    static_assert(kConfig.stages() >= 2);
    struct Stage {
        SwizzledTile C[kConfig.state_tiles()], B[kConfig.state_tiles()], x[kConfig.heads];
        SwizzledTile z[kConfig.gated ? kConfig.heads : 1];
    };
    // Without z its tile is not there.
    static constexpr int kStageBytes = kConfig.stage_tiles(kConfig.heads) * static_cast<int>(sizeof(SwizzledTile));
    // Of a chunk and head; G: sums of δA from the chunk's first token on, in log2.
    struct alignas(16) Factors {
        float gate[kChunk], delta[kChunk];
        float before[kChunk];  // exp(G), of the state before the chunk in a token's output
        float after[kChunk];   // δ exp(G_end - G), of a token in the state after the chunk
    };
    // A chunk uses stage (chunk % stages) of what is loaded, and slot (chunk % slots) of what is formed from it.
    alignas(1024) unsigned char stages[kConfig.stages()][kStageBytes];
    SwizzledTile scores[kConfig.slots()][kConfig.heads];  // M; zero above the diagonal
    Factors factors[kConfig.slots()][kConfig.heads];
    float decay[kConfig.slots()][kConfig.heads];  // exp(G_end)
    SsdWork work;
    // mbarriers: who arrives -> who waits.
    //     stage_full    TMA -> scores, heads
    //     scores_full   scores: M and factors -> heads
    //     scores_empty  each warp of the heads has read them -> scores
    //     stage_empty   each warp of the heads has read the stage, and the outputs in place of x are stored -> scores
    unsigned long long stage_full[kConfig.stages()], stage_empty[kConfig.stages()];
    unsigned long long scores_full[kConfig.slots()], scores_empty[kConfig.slots()];
};

// One number a head.
struct PerHead {
    Tagged values;
    i64 head = 0, channel = 0;  // strides in elements; channel: of D
};

struct SsdArgs {
    TensorMap x, z, B, C, out;  // (element, head or group, token, batch)
    Tagged dt;
    i64 dt_batch = 0, dt_token = 0, dt_head = 0;
    PerHead A, D, dt_bias;  // D and dt_bias may be absent
    Tagged cu_seqlens;
    const float* initial = nullptr;  // (sequences, heads, channels, states)
    float* last = nullptr;
    void* out_data = nullptr;  // for chunks whose tile would overwrite the next sequence's outputs
    i64 out_token = 0, out_head = 0;
    int sequences = 0, tokens = 0, heads = 0, groups = 0;
    float lowest = 0.f, highest = 0.f;  // of δ
    bool softplus = false;
};

}  // namespace gdn_cuda::ssd
