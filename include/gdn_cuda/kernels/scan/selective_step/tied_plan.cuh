// Configuration and shared memory of scan/selective_step_tied, for host and device.
#pragma once

#include <gdn_cuda/kernels/scan/selective_step/plan.cuh>

namespace gdn_cuda::scan {

struct TiedStepConfig {
    DType state;  // in memory; registers hold fp32
    int columns;  // N: 64, 128 or 256

    constexpr bool operator==(const TiedStepConfig&) const = default;

    GDN_FIELDS(state, columns)

    GDN_HOST_DEVICE static constexpr int threads() { return 128; }
    // Row steps in flight. As in gdn/decode, where four saturate an H200's memory.
    GDN_HOST_DEVICE static constexpr int stages() { return 4; }
    // Blocks an SM for which registers are limited; codes take more of them.
    GDN_HOST_DEVICE constexpr int blocks_at_least() const { return coded() ? 5 : 6; }
    GDN_HOST_DEVICE constexpr bool coded() const { return state == DType::i8; }
    // How a lane holds a row, as in the other kernels of the step, so that sums have their order: 16 elements, or 8.
    GDN_HOST_DEVICE constexpr SelectiveStepConfig row() const {
        const int vector = 16 / bytes_of(state);
        if (coded()) return {.state = state, .vector = vector, .vectors = 1};
        return {.state = state, .vector = vector, .vectors = columns < 16 * vector ? 1 : bytes_of(state) == 2 ? 2 : 4};
    }
    GDN_HOST_DEVICE constexpr int lanes() const { return columns / row().elements(); }
    GDN_HOST_DEVICE constexpr int rows_per_step() const { return threads() / lanes(); }
    GDN_HOST_DEVICE constexpr int row_bytes() const { return columns * bytes_of(state); }
};

// Scales of int8 states, one for each thread's vector.
template <TiedStepConfig kConfig, bool kCoded = kConfig.coded()>
struct TiedStepScales {};
template <TiedStepConfig kConfig>
struct TiedStepScales<kConfig, true> {
    float scales[kConfig.stages()][kConfig.row().vectors][kConfig.threads()];
};

// A thread reads only what it copied itself, so there are no barriers.
template <TiedStepConfig kConfig>
struct TiedStepSharedPlan : TiedStepScales<kConfig> {
    struct alignas(16) Vector {
        unsigned char bytes[16];
    };
    Vector state[kConfig.stages()][kConfig.row().vectors][kConfig.threads()];
};

}  // namespace gdn_cuda::scan
