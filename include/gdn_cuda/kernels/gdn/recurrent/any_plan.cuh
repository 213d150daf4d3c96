// Configuration, shared memory and arguments of gdn/recurrent_any, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

struct RecurrentAnyConfig {
    int head_k;                  // key dimension held in registers: 64, 128 or 256; that of the tensors may be smaller
    bool channel_gates = false;  // a gate for every channel of the key
    bool coded = false;          // states are int8 codes

    constexpr bool operator==(const RecurrentAnyConfig&) const = default;

    GDN_FIELDS(head_k, channel_gates, coded)

    struct Group {  // the lanes that hold a row of the state
        int lanes, per_lane;
    };
    static constexpr int kThreads = 128;
    GDN_HOST_DEVICE constexpr int threads() const { return kThreads; }
    // With a bound of three blocks per SM the compiler keeps in registers what it spills without one.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return 3; }
    GDN_HOST_DEVICE constexpr Group layout() const { return {8, head_k / 8}; }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return kThreads / layout().lanes; }
};

template <RecurrentAnyConfig kConfig>
struct RecurrentAnyShared {
    static constexpr int kTokens = 8, kRows = kConfig.rows_per_block();
    // The 32 lanes of a warp, 8 in each of 4 adjacent rows, access 32 banks.
    static constexpr int kPitch = kConfig.head_k + kConfig.layout().lanes;
    float state[kRows][kPitch];
    float query[kTokens][kConfig.head_k], key[kTokens][kConfig.head_k];
    float decay[kConfig.channel_gates ? kTokens : 1][kConfig.channel_gates ? kConfig.head_k : 1];
    TokenScalars scalars[kTokens];
    float value[kTokens][kRows];  // each row's value, overwritten by its output
};

struct RecurrentAnyArgs {
    GdnCall call;  // call.heads: those of states and outputs
    DType io;
    i64 query_d, key_d, value_d, output_d;  // strides of the last dimension
    int heads_per_query, heads_per_value;
};

}  // namespace gdn_cuda::gdn
