// What prefill is asked for, and which of its kernels takes it.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

#include "../../jit/env.hpp"

namespace gdn_cuda::gdn {

// Chunks of tokens on the tensor cores: gdn/prefill.
struct PrefillProblem {
    i64 sequences, tokens;  // tokens: of a sequence, on average
    int heads, dk, dv;
    DType io, state;
    bool deterministic = false;  // a sequence is one segment, whatever it is batched with
};

inline constexpr int kPrefillLongestKey = 128;

// Which kernel runs chunked_forward. `rows_fit`: the rows of all tensors start on 16 bytes and are whole multiples of them.
// `scalars_near`: kMostBetweenScalars. Nothing here knows lengths: what a sequence is packed with must not choose its kernel.
enum class PrefillKernel { wgmma, mma, recurrent };

inline PrefillKernel prefill_kernel(bool rows_fit, bool scalars_near, int dk, int capability, jit::Prefill wanted) {
    constexpr int kHopper = 90, kFirstWithMma = 80;
    if (!rows_fit || wanted == jit::Prefill::recurrent || capability < kFirstWithMma) return PrefillKernel::recurrent;
    const bool fits_wgmma = capability == kHopper && dk <= kPrefillLongestKey && scalars_near;
    return fits_wgmma && wanted == jit::Prefill::automatic ? PrefillKernel::wgmma : PrefillKernel::mma;
}

}  // namespace gdn_cuda::gdn
