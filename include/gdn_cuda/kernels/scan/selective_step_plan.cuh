// Configuration, shared memory and arguments of scan/selective_step, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>
#include <gdn_cuda/kernels/scan/discretization_plan.cuh>

namespace gdn_cuda::scan {

struct SelectiveStepConfig {
    DType state;  // in memory; registers hold fp32
    int vector;   // elements of one access: 16 bytes, or one element where rows do not consist of 16-byte units
    int vectors;  // a lane has of each row

    constexpr bool operator==(const SelectiveStepConfig&) const = default;

    GDN_FIELDS(state, vector, vectors)

    GDN_HOST_DEVICE static constexpr int threads() { return 128; }
    // Tokens in shared memory at once: of one sequence, or one each of as many sequences.
    GDN_HOST_DEVICE constexpr int items() const { return aligned() && vectors == 1 ? 8 : 4; }
    // Of a multiprocessor. Without this number the compiler computes so many numbers of a state at once that it has registers
    // for two; with more, it spills, and from sm_100 on already with these.
    GDN_HOST_DEVICE constexpr int blocks_at_least(int capability) const {
        if (capability >= 100) return 2;
        return !aligned() || vectors > 1 ? 4 : bytes_of(state) == 2 ? 5 : 6;
    }
    GDN_HOST_DEVICE constexpr bool aligned() const { return vector > 1; }
    GDN_HOST_DEVICE constexpr int elements() const { return vector * vectors; }  // of a row, a lane
    GDN_HOST_DEVICE constexpr int columns() const {                              // of the longest row
        return aligned() && vectors == 1 ? 16 * vector : 256;
    }
    GDN_HOST_DEVICE constexpr int parts() const { return is_complex(state) ? 2 : 1; }
};

template <SelectiveStepConfig kConfig>
struct SelectiveStepSharedPlan {
    static constexpr int kItems = kConfig.items(), kThreads = kConfig.threads();
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    // Each thread reads back only what it copied itself.
    Vector state[kConfig.aligned() ? kItems : 1][kConfig.aligned() ? kConfig.vectors : 1][kThreads];
    alignas(16) float B[kItems][kConfig.columns() * kConfig.parts()];
    alignas(16) float C[kItems][kConfig.columns() * kConfig.parts()];
    // By row of the block. An output Σ C x takes the place of the step size that it came from.
    float delta[kItems][kThreads], delta_a[kItems][kThreads], x[kItems][kThreads], gate[kItems][kThreads];
    i64 slot[kItems];
    int place[kItems];
};

struct SelectiveStepArgs {
    // Strides in elements. No data: absent.
    struct ByRow {  // (sequence, token, head, d)
        Tagged values;
        i64 sequence = 0, token = 0, head = 0, d = 0;
    };
    struct ByColumn {  // (sequence, token, group, n)
        Tagged values;
        i64 sequence = 0, token = 0, group = 0, n = 0;
    };
    struct PerRow {  // (head, d)
        Tagged values;
        i64 head = 0, d = 0;
    };
    ByRow x, delta, delta_a, z;
    void* out;  // of x's dtype
    i64 out_sequence, out_token, out_head, out_d;
    ByColumn B, C;
    const void* A;  // (head, d, n)
    i64 A_head, A_d, A_n;
    PerRow D, bias;
    Discretization discretization;
    bool softplus;
    bool tied;  // one Ā for all columns of a row
    int sequences, tokens, heads, dim;
    int group_rows;       // heads times d that share B and C; a state's rows are those of one group after another
    int columns;          // N
    int lane_bits;        // a row has 2^lane_bits lanes
    int block_sequences;  // sequences of a block: one if there are several tokens

    // States: (slots, heads, dim, N), each contiguous.
    void* pool;
    i64 pool_slot;  // stride
    Tagged slots;   // (sequences,) or (sequences, slot_steps); absent: sequence n has slot n
    i64 slots_sequence, slots_token;
    int slot_count, slot_steps;  // bounds
    Tagged accepted;             // tokens accepted in the last verify; below 1 counts as 1
    static constexpr i64 null_slot = -1;

    enum Kept : int { last, every_by_slot, every_by_step_slot } kept;  // the states that are stored
    void* steps;                                                       // (rows, tokens, heads, dim, N)
    i64 steps_row, steps_token;
    Tagged step_slots;  // (sequences,): row of sequence n
    int step_slot_count, step_limit;
};

}  // namespace gdn_cuda::scan
