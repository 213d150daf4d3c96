// What every kernel of the chunked form agrees on, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

constexpr int kChunk = 64;
constexpr float kLog2e = 1.4426950408889634f;

// Cumulative gates (log2) are clamped per gate at kLowestGateLog2: the exponential is 0 in fp32 in any case, and the sum keeps
// precision for later gates. A gate below kResetGateLog2 resets the state: its own exponential is 0.
constexpr float kLowestGateLog2 = -160.f, kResetGateLog2 = -126.f;

// log2 of a factor by which a state no longer matters (chunked/segments.cuh).
constexpr float kNegligibleLog2 = -80.f;

// A beta of 0 counts as this in the backward, so that R = V' / beta and with it beta's gradient exist. A power of two: products
// with it are exact. fp16 has no smaller one that V' = beta R could still be rounded to.
GDN_HOST_DEVICE constexpr float least_beta(DType io) {
    return io == DType::bf16 ? 0x1p-60f : 0x1p-13f;
}

// Similar keys with large beta give (I + A)^-1 large entries that cancel: rounding them, V' and P to 16 bits once would be most
// of the error. Chunks with an off-diagonal entry beyond this split all three into two 16-bit parts (docs/numerics.md).
constexpr float kCancelThreshold = 0.5f;

// The order in which a block takes the chunks of its work.
enum class Direction : int { forward, backward };
// How a configuration's text has it (csrc/launch/fields.hpp).
constexpr const char* word_of(Direction direction) {
    return direction == Direction::forward    ? "gdn::Direction::forward"
           : direction == Direction::backward ? "gdn::Direction::backward"
                                              : "?";
}

}  // namespace gdn_cuda::gdn
