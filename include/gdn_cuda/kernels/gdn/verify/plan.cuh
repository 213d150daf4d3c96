// Configuration, shared memory and arguments of gdn/verify, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/recurrent/plan.cuh>

namespace gdn_cuda::gdn {

struct VerifyConfig {
    int head_k;  // exactly the tensors': 64, 96, 128, 192 or 256
    DType io;
    DType state;
    int rows_per_thread;  // in a step: a thread reads a token once for all of them, and shuffles sum them together
    int warps;
    bool channel_gates = false;  // a gate for every channel of the key

    constexpr bool operator==(const VerifyConfig&) const = default;

    GDN_FIELDS(head_k, io, state, rows_per_thread, warps, channel_gates)

    static constexpr int kTokens = 16;     // the most tokens of a sequence
    static constexpr int kMostRows = 128;  // per block
    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
    GDN_HOST_DEVICE constexpr StateLayout layout() const { return StateLayout(head_k, state); }
    // The lanes that hold a row, with 16 or 24 elements each, which are those of one or more lanes of the layout.
    GDN_HOST_DEVICE constexpr int lanes() const {
        int lanes = layout().lanes;
        while (head_k / lanes < 16) lanes /= 2;
        return lanes;
    }
    GDN_HOST_DEVICE constexpr int parts() const { return layout().lanes / lanes(); }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / lanes() * rows_per_thread; }
    // Blocks per SM: with this bound no register spills, and shared memory has room for as many blocks, with gates of channels
    // for one less.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return head_k > 128 ? 3 : 4; }
};

// More rows than this would spill registers.
constexpr int most_verify_rows_per_thread(int head_k) {
    return head_k == 96 || head_k == 192 ? 2 : 4;
}

template <VerifyConfig kConfig, bool kChannelGates = kConfig.channel_gates>
struct VerifyDecays {};
template <VerifyConfig kConfig>
struct alignas(16) VerifyDecays<kConfig, true> {
    float decays[VerifyConfig::kTokens][kConfig.head_k];
};

// Scales of the codes that a thread copies.
template <VerifyConfig kConfig, bool kCoded = kConfig.state == DType::i8>
struct VerifyScales {};
template <VerifyConfig kConfig>
struct VerifyScales<kConfig, true> {
    float scales[kConfig.rows_per_thread][kConfig.layout().vectors()][kConfig.threads()];
};

template <VerifyConfig kConfig>
struct VerifySharedPlan : VerifyDecays<kConfig>, VerifyScales<kConfig> {
    static constexpr int kTokens = VerifyConfig::kTokens;
    static constexpr int kVectorBytes = kConfig.layout().vector * bytes_of(kConfig.state);
    struct alignas(kVectorBytes) Vector {
        unsigned char bytes[kVectorBytes];
    };
    struct alignas(16) Row {
        float elements[kConfig.head_k];
    };
    Vector state[kConfig.rows_per_thread][kConfig.parts()][kConfig.layout().vectors()][kConfig.threads()];
    Row query[kTokens], key[kTokens];
    TokenScalars scalars[kTokens];
    i64 kept[kTokens];  // offset of where the state after a token is stored, of codes its slot; negative: it is not
    unsigned short value[kTokens][VerifyConfig::kMostRows];  // the bits of each row's 16-bit value, overwritten by its output
};

struct VerifyArgs {
    GdnCall call;
    int steps;  // row steps per block; their rows are at most VerifyConfig::kMostRows
};

}  // namespace gdn_cuda::gdn
