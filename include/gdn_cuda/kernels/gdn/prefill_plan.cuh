// Configuration, shared memory and arguments of gdn/prefill, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/tensor_map.cuh>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <gdn_cuda/kernels/gdn/recurrent_plan.cuh>

namespace gdn_cuda::gdn {

constexpr int kWarpgroup = 128;    // threads
constexpr int kValueRows = 64;     // of the state, a warpgroup
constexpr int kTileElements = 64;  // of a 128-byte row

struct PrefillConfig {
    int head_k;         // 64, 96 or 128; shorter keys are filled with zeros
    int value_groups;   // warpgroups with 64 rows of the state each
    int helper_groups;  // warpgroups that run ahead on what needs no state: taking turns at chunks
    int stages;         // chunks on their way through shared memory
    DType io;

    constexpr bool operator==(const PrefillConfig&) const = default;

    template <class Visitor>
    constexpr void fields(Visitor&& visit) const {
        visit("head_k", head_k);
        visit("value_groups", value_groups);
        visit("helper_groups", helper_groups);
        visit("stages", stages);
        visit("io", io);
    }

    GDN_HOST_DEVICE constexpr int threads() const { return (value_groups + helper_groups) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return value_groups * kValueRows; }
    // How many of its own chunks a helper looks ahead when it has some brought: as far as there are stages.
    GDN_HOST_DEVICE constexpr int lookahead() const { return helper_groups == 1 ? 2 : 1; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
    // What the threads of a block share is given out anew: the state's owners need most.
    GDN_HOST_DEVICE constexpr int helper_registers() const { return helper_groups == 2 ? 136 : value_groups == 2 ? 120 : 152; }
    GDN_HOST_DEVICE constexpr int value_registers() const { return value_groups == 2 ? 192 : 232; }
};

// 64 tokens and 64 elements, 128-byte rows, swizzled (tma.cuh).
struct alignas(1024) PrefillTile {
    unsigned char bytes[kChunk * kTileElements * 2];
};

// One block's work: a sequence, a value head, some rows of its state.
struct PrefillWork {
    i64 start, initial_slot, last_slot;  // the first token; elements from the first slot to the sequence's
    int length, chunks;                  // of the sequence
    int sequence, head, key_head, first_row;
    i64 checkpoints_before;  // those of the sequences packed before
};

template <PrefillConfig kConfig>
struct PrefillSharedPlan {
    struct Stage {
        PrefillTile key[kConfig.key_tiles()], query[kConfig.key_tiles()], value[kConfig.value_groups];
    };
    // What helpers make of a chunk. The inverse comes in two parts: with beta near 2 and similar keys its entries alternate and
    // cancel, and one rounding to 16 bits would be most of the error.
    struct Matrices {
        PrefillTile inverse, inverse_rest;  // (I + A)^-1 diag(beta), and what its rounding left
        PrefillTile scores;                 // q k^T, decayed and masked
    };
    // Scalars of a chunk's tokens, G the cumulated gates, r the inverse norms of keys and queries.
    struct alignas(16) Factors {
        float of_key[kChunk];     // exp(G) r: what the state has of a key when its token comes
        float of_query[kChunk];   // scale exp(G) r
        float of_update[kChunk];  // exp(G_end - G) r
        float decay;              // exp(G_end)
    };
    // 16 x 16 blocks of the lower triangle, rows padded against bank conflicts.
    struct alignas(16) Block {
        float at[16][20];
    };
    struct Scratch {  // a helper's
        Block blocks[10];
        struct Scalars {  // of rows and columns; gates are cumulated, in units of ln 2
            float gate[kChunk], beta[kChunk], column[kChunk], of_key[kChunk], of_query[kChunk];
        } scalars[3];  // of the chunks on their way, and of the one that slower warps still read
    };
    Stage stages[kConfig.stages];
    Matrices matrices[2];
    PrefillTile output[kConfig.value_groups];
    Scratch scratch[kConfig.helper_groups];
    Factors factors[kConfig.stages];
    PrefillWork work;  // not in registers: they are short
    unsigned long long loaded[kConfig.stages], ready[kConfig.stages], free[kConfig.stages];
    unsigned long long used[2];  // matrices, by the state's owners
};

struct PrefillArgs {
    TensorMap query, key, value, output;  // (d, head, token, batch)
    RecurrentArgs recurrence;
    DType state;
};

}  // namespace gdn_cuda::gdn
