// Configuration of a chunked kernel on Hopper: its roles, their registers, and the constants that host and device agree on.
#pragma once

#include <gdn_cuda/kernels/chunked/chunk.cuh>
#include <gdn_cuda/kernels/hopper/warpgroup.cuh>

namespace gdn_cuda::gdn {

constexpr int kValueRows = 64;       // rows of the state per value warpgroup
constexpr int kShortestSegment = 8;  // chunks
// In chunks, where a sequence's own length decides how it is split: the longest sequence that is not split; the fewest chunks
// of a segment, if all heads get the same number of segments, and if some get more.
constexpr int kLongestUnsplit = 80, kShortestByLength = 16, kShortestUneven = 12;
constexpr int kMostByLength = 256;  // packed sequences that blocks order by length; with more, their order is the batch's

// Largest token stride of gates and betas, in elements: the kernel keeps the stride in bytes in 32 bits.
constexpr i64 kLongestScalarStride = (i64{1} << 31) / 8;

constexpr int kWorkTileStages = 3;  // stages of a persistent block, which knows each stage's chunk (chunked/work.cuh)

struct ChunkedConfig {
    int head_k;          // 64, 96, 128, 192 or 256; shorter keys are zero-padded
    int value_groups;    // warpgroups with 64 rows of the state each
    int inverse_groups;  // warpgroups that invert I + A, in turn
    int stages;          // chunks in flight in shared memory
    DType io;
    bool chained = false;     // a block may take several passes, to hand states from segment to segment (chunked/segments.cuh)
    bool persistent = false;  // one block per SM takes whole sequences one after another (chunked/persistent.cuh)
    Direction direction = Direction::forward;
    // For the backward: betas of 0 count as least_beta, norms are kept, and T always has its rounding residual.
    bool trains = false;

    constexpr bool operator==(const ChunkedConfig&) const = default;

    GDN_FIELDS(head_k, value_groups, inverse_groups, stages, io, chained, persistent, direction, trains)

    // What the roles rely on; ChunkedPlan asserts it, so that no kernel can be built of anything else.
    GDN_HOST_DEVICE constexpr bool is_valid() const {
        const bool is_narrow = head_k == 64 || head_k == 96 || head_k == 128;
        const bool is_supported = (is_narrow || (is_wide() && value_groups == 1 && inverse_groups == 1 && stages == 3)) &&
                                  (value_groups == 1 || value_groups == 2) && (inverse_groups == 1 || inverse_groups == 2) &&
                                  stages >= 2 && (io == DType::bf16 || io == DType::f16);
        // A persistent block's one inverse warpgroup takes all chunks and plans work tiles; its sequences are not split.
        const bool persists = inverse_groups == 1 && stages == kWorkTileStages && !chained && direction == Direction::forward;
        // Segments hand states forward only.
        return is_supported && (!persistent || persists) && (!chained || direction == Direction::forward) &&
               (!trains || (!persistent && !chained)) &&
               (!is_wide() || (!persistent && !chained && !trains && direction == Direction::forward));
    }

    // 64 rows of so wide a state leave no registers for its rounded copy, and three chunks of its keys and queries no shared
    // memory: queries and values have a stage less, and what is formed of chunks one slot, which is emptied early.
    GDN_HOST_DEVICE constexpr bool is_wide() const { return head_k == 192 || head_k == 256; }
    GDN_HOST_DEVICE constexpr int row_stages() const { return stages - 1; }
    // What is formed of chunks comes later than what is loaded, so one slot fewer keeps up.
    GDN_HOST_DEVICE constexpr int slots() const { return is_wide() ? 1 : stages - 1; }

    // (I + A)^-1 by fp16 products (chunked/half_inverse.cuh). Not for the backward, which divides by betas however small; with
    // long keys tf32 is faster.
    GDN_HOST_DEVICE constexpr bool inverts_in_half() const { return !is_wide() && !trains; }

    // Warpgroup order: one that loads chunks and forms scores, those that invert, those that own the state.
    GDN_HOST_DEVICE constexpr int first_value_group() const { return 1 + inverse_groups; }
    GDN_HOST_DEVICE constexpr int threads() const { return (first_value_group() + value_groups) * kWarpgroup; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return value_groups * kValueRows; }
    GDN_HOST_DEVICE constexpr int key_tiles() const { return (head_k + kTileElements - 1) / kTileElements; }
    // setmaxnreg per role; value warpgroups hold the state and need the most registers, fewer for short keys.
    GDN_HOST_DEVICE constexpr int scores_registers() const { return value_groups == 2 && head_k == 128 ? 64 : 80; }
    GDN_HOST_DEVICE constexpr int inverse_registers() const { return value_groups == 2 ? 64 : 112; }
    GDN_HOST_DEVICE constexpr int value_registers() const {
        return is_wide() ? 256 : value_groups == 1 ? 208 : head_k == 128 ? 192 : 184;
    }
};

// Marks a chunk in which some exp(gate) is 0: -0, distinct from a decay product that underflows.
constexpr float kResets = -0.f;

}  // namespace gdn_cuda::gdn
