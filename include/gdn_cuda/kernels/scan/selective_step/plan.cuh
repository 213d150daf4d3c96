// Configuration, shared memory and arguments of scan/selective_step, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

struct SelectiveStepConfig {
    DType state;  // in memory; registers hold fp32
    int vector;   // elements of one access: 16 bytes, or one element if rows do not consist of 16-byte units
    int vectors;  // vectors of a row per lane

    constexpr bool operator==(const SelectiveStepConfig&) const = default;

    GDN_FIELDS(state, vector, vectors)

    GDN_HOST_DEVICE static constexpr int threads() { return 128; }
    // Most items in shared memory at once: tokens of one sequence, or sequences with one token each.
    GDN_HOST_DEVICE constexpr int items() const { return aligned() && vectors == 1 ? 8 : 4; }
    // Items whose x, δ and z a thread has in registers: at most 2 where registers are short, otherwise all that it moves.
    GDN_HOST_DEVICE constexpr int row_items() const {
        const int all = (items() + fewest_lanes() - 1) / fewest_lanes();
        return aligned() && state == DType::f32 && all > 2 ? 2 : all;
    }
    // Items in shared memory at once if a row has `lanes` lanes.
    GDN_HOST_DEVICE constexpr int items_at_once(int lanes) const {
        const bool always_all = row_items() * fewest_lanes() >= items();
        return always_all || row_items() * lanes >= items() ? items() : row_items() * lanes;
    }
    // Most sequences of a block, with one token each.
    GDN_HOST_DEVICE static constexpr int most_sequences() { return 32; }
    // Blocks an SM for which registers are limited; more would spill.
    GDN_HOST_DEVICE constexpr int blocks_at_least(int capability) const {
        if (capability >= 100) return 2;
        if (!aligned() || vectors > 1 || state == DType::f16) return !aligned() && is_complex(state) ? 3 : 4;
        return state == DType::f32 && capability >= 90 ? 6 : 5;
    }
    // The same of scan/selective_step_direct; 0: registers are not limited.
    GDN_HOST_DEVICE constexpr int direct_blocks_at_least() const { return state == DType::f32 && vectors == 1 ? 10 : 0; }
    GDN_HOST_DEVICE constexpr bool aligned() const { return vector > 1; }
    GDN_HOST_DEVICE constexpr int elements() const { return vector * vectors; }  // per lane, of one row
    GDN_HOST_DEVICE constexpr int columns() const {                              // in the longest row
        return aligned() && vectors == 1 ? 16 * vector : 256;
    }
    GDN_HOST_DEVICE constexpr int fewest_lanes() const { return !aligned() ? 1 : vectors == 1 ? 2 : 4; }  // per row
    GDN_HOST_DEVICE constexpr int most_rows() const { return threads() / fewest_lanes(); }                // per block
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex(state) ? 2 : 1; }
    // Whether B and C may be copied by 16-byte units, and how many a thread copies for the current items.
    GDN_HOST_DEVICE constexpr bool column_units() const { return aligned() && !is_complex(state); }
    GDN_HOST_DEVICE constexpr int most_column_units() const { return 2 * items() * (columns() / 4) / threads(); }
};

// A row's scalars for one token.
struct alignas(16) StepRow {
    float delta, delta_a, u, gate;
};

template <SelectiveStepConfig kConfig>
struct SelectiveStepSharedPlan {
    static constexpr int kSequences = kConfig.most_sequences();
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    struct alignas(16) Item {
        // Each thread reads back only what it copied itself.
        Vector state[kConfig.aligned() ? kConfig.vectors : 1][kConfig.aligned() ? kConfig.threads() : 1];
        alignas(16) float B[kConfig.columns() * kConfig.parts()];
        alignas(16) float C[kConfig.columns() * kConfig.parts()];
        StepRow row[kConfig.most_rows()];
        alignas(16) float sum[kConfig.threads()];  // each lane's Σ C x
        // `to`: where the state after the item is stored. `later`: the state copied to its place then, or in
        // scan/selective_step_tokens the state that it starts from. nullptr: none.
        void* to;
        const void* later;
    };
    Item items[kConfig.items()];
    // B and C of the next items. Each thread reads back only what it copied itself.
    Vector column_units[kConfig.column_units() ? kConfig.most_column_units() : 1]
                       [kConfig.column_units() ? kConfig.threads() : 1];
    const void* from[kSequences];  // each sequence's state in the pool; nullptr: none
    int place[kSequences];
};

struct SelectiveStepArgs {
    // No data: absent. Strides in bytes; `item` is the stride of tokens, or of sequences with one token each.
    struct ByRow {
        Tagged values;
        i64 sequence = 0, item = 0, head = 0, d = 0;
    };
    struct ByColumn {
        Tagged values;
        i64 sequence = 0, item = 0, group = 0, n = 0;
    };
    struct PerRow {  // (head, d)
        Tagged values;
        i64 head = 0, d = 0;
    };
    // Strides below are in elements.
    ByRow x, delta, delta_a, z;
    ByRow out;  // has x's dtype
    ByColumn B, C;
    bool column_units;  // whether rows of B and C consist of 16-byte units, and start on them
    const void* A;      // (head, d, n)
    i64 A_head, A_d, A_n;
    bool A_vectors;  // whether A can be loaded 16 bytes at a time
    PerRow D, bias;
    Discretization discretization;
    bool softplus;
    // Whether x, δ, z, B and C are bf16, D and the bias fp32, none absent, no δ_A, column_units, the discretization is mamba,
    // and the state is stored in_place.
    bool plain;
    bool in_place;  // whether only the last state is stored, where it was read
    bool tied;      // one Ā for all columns of a row
    int sequences, tokens, heads, dim;
    int group_rows;       // rows (heads times d) that read one group of B and C; a state has the rows of group after group
    int columns;          // N
    int lane_bits;        // a row has 2^lane_bits lanes
    int block_sequences;  // sequences per block: one if there are several tokens

    // States: (slots, heads, dim, N), each contiguous.
    void* pool;
    i64 pool_slot;  // stride
    Tagged slots;   // (sequences,) or (sequences, slot_steps); absent: sequence n has slot n
    i64 slots_sequence, slots_token;
    int slot_count, slot_steps;  // bounds
    Tagged accepted;             // tokens accepted in the last verify step; less than 1 counts as 1
    i64 null_slot;               // like negatives, skips its sequence, and is not written; -1: none

    // The state after the last token, or after every token, is stored in row rows[n, t] of `states`.
    enum Kept : int { none, last, every } kept;
    struct States {
        void* states;  // (rows, tokens, heads, dim, N)
        i64 row, token;
        Tagged rows;  // (sequences,) or (sequences, tokens); absent: the state is stored where it was read
        i64 rows_sequence, rows_token;
        i64 null_row;          // like negatives, not written; -1: none
        int row_count, limit;  // bounds: of rows, and of tokens with a state
    } to;

    // scan/selective_step_tokens alone:
    Tagged cu_seqlens;  // (sequences + 1,): tokens are packed, and strides of `sequence` and `item` the same
    States last_to;     // for the state after the last token beside `to`, which has none or every; without states: not stored
    Tagged parents;     // (sequences, parents_count): tokens of a tree; if absent, each continues from the one before
    i64 parents_sequence, parents_token;
    int parents_count;  // at most kMostTreeTokens

    // scan/selective_step_tied alone:
    int row_steps;        // per block, no more than a row has lanes
    float* scales;        // int8 states': (slots, heads, dim, N / 32), each slot contiguous
    i64 scales_slot = 0;  // stride
};

}  // namespace gdn_cuda::scan
