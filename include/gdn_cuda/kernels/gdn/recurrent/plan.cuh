// Configuration and arguments of gdn/recurrent, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

struct RecurrentConfig {
    int head_k;           // key dimension held in registers: 64, 96, 128, 192 or 256
    bool exact_k;         // the tensors have this key dimension; else theirs is smaller, and the tail is masked
    DType io;             // query, key, value, output
    DType state;          // the state in memory; registers hold fp32
    int rows_per_thread;  // rows per group of lanes, for which a token is loaded once
    int warps;
    bool aligned;                // every row is 16-byte aligned
    bool channel_gates = false;  // a gate for every channel of the key

    constexpr bool operator==(const RecurrentConfig&) const = default;

    GDN_FIELDS(head_k, exact_k, io, state, rows_per_thread, warps, aligned, channel_gates)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    // Blocks per SM. Without this bound the compiler spills a few registers with one row per thread, and uses more registers
    // than needed with two.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const {
        if (rows_per_thread == 1 || head_k == 64) return 3;
        return layout().per_lane <= 8 && !channel_gates ? 4 : layout().per_lane <= 16 ? 3 : 1;
    }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int rows_per_block() const { return threads() / layout().lanes * rows_per_thread; }
};

inline constexpr int kRecurrentTokens = 16;  // of a batch

template <RecurrentConfig kConfig, bool kChannelGates = kConfig.channel_gates>
struct TokenDecays {};
template <RecurrentConfig kConfig>
struct alignas(16) TokenDecays<kConfig, true> {
    float decays[kRecurrentTokens][kConfig.head_k];
};

// A batch of tokens in shared memory, which all rows of a block read.
template <auto kConfig>
struct TokenBatch : TokenDecays<kConfig> {
    static constexpr int kTokens = kRecurrentTokens;
    struct alignas(16) Row {
        unsigned char bytes[kConfig.head_k * bytes_of(kConfig.io)];
    };
    Row query[kTokens], key[kTokens];
    TokenScalars scalars[kTokens];
    float value[kTokens][kConfig.rows_per_block()];  // each row's value, overwritten by its output
};

}  // namespace gdn_cuda::gdn
