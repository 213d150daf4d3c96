// Configuration, shared memory and arguments of gdn/decode, for host and device.
#pragma once

#include <gdn_cuda/kernels/recurrence/call.cuh>
#include <gdn_cuda/kernels/recurrence/state_layout.cuh>

namespace gdn_cuda::gdn {

struct DecodeConfig {
    int head_k;   // exactly the tensors': 64, 96, 128, 192 or 256
    DType io;     // query, key, value, output
    DType state;  // the state in memory; registers hold fp32
    int warps;
    int stages;        // row steps in flight in shared memory; 0: one step per block, loaded into registers
    bool fused_gates;  // gates are computed from a, b, A_log and dt_bias; else the arguments are beta and the log decay
    bool channel_gates = false;  // a gate for every channel of the key: DecodeArgs::channels, and any form of beta

    constexpr bool operator==(const DecodeConfig&) const = default;

    GDN_FIELDS(head_k, io, state, warps, stages, fused_gates, channel_gates)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / layout().lanes; }
    GDN_HOST_DEVICE constexpr int shared_bytes() const {
        const int scales = state == DType::i8 ? layout().vectors() * bytes_of(DType::f32) : 0;
        return stages * threads() * (layout().per_lane * bytes_of(state) + scales) +
               (channel_gates ? head_k * bytes_of(DType::f32) : 0);
    }
};

// Scales of the codes that a thread copies.
template <DecodeConfig kConfig, bool kCoded = kConfig.state == DType::i8>
struct DecodeScales {};
template <DecodeConfig kConfig>
struct alignas(16) DecodeScales<kConfig, true> {
    float scales[kConfig.stages > 0 ? kConfig.stages : 1][kConfig.layout().vectors()][kConfig.threads()];
};

// A thread reads only the elements of the state that it copied itself, so there are no barriers for them. Decays are the only
// part that threads read from each other.
template <DecodeConfig kConfig>
struct DecodeSharedPlan : ChannelDecays<kConfig.head_k, kConfig.channel_gates>, DecodeScales<kConfig> {
    static constexpr int kVectorBytes = kConfig.layout().vector * bytes_of(kConfig.state);
    struct alignas(kVectorBytes) Vector {
        unsigned char bytes[kVectorBytes];
    };
    Vector state[kConfig.stages > 0 ? kConfig.stages : 1][kConfig.layout().vectors()][kConfig.threads()];
};

struct DecodeArgs {
    // (sequence, head, d), d contiguous; strides in elements
    struct Heads {
        void* data = nullptr;
        i64 sequence = 0, head = 0;
    };
    struct Gates {  // (sequence, head)
        Tagged values;
        i64 sequence = 0, head = 0;
    };
    Heads query, key, value, output;
    Gates beta, gate;   // with fused gates: b and a
    float beta_factor;  // fused gates: beta is this times a sigmoid
    Tagged A_log, dt_bias;
    int heads_per_key, dv;
    int steps;  // row steps per block, no more than a row has lanes
    float scale;
    bool qk_norm;

    Tagged slots;  // (sequences,); if absent, sequence n has slot n
    i64 slots_sequence;
    i64 slot_count, null_slot;
    const void* state_in;  // (slots, Hv, dv, dk); nullptr: zeros
    void* state_out;
    i64 state_in_slot, state_out_slot;
    float *scales_in, *scales_out;  // for codes
    i64 scales_in_slot, scales_out_slot;

    // With a gate for every channel, whose strides of sequences and heads are those of `gate`.
    ChannelGates channels;
    GateForms forms;  // how beta is given
};

}  // namespace gdn_cuda::gdn
