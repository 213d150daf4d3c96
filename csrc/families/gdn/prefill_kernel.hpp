// Which kernel computes the chunked form.
#pragma once

#include <string>

#include "../../jit/text.hpp"
#include "variables.hpp"

namespace gdn_cuda::gdn {

inline constexpr int kPrefillLongestKey = 256, kHopper = 90;
inline constexpr int kChannelsLongestKey = 128;  // with a gate for every channel

// Chooses the kernel of chunked_forward with a gate for each head. `rows_fit`: all rows start at and span multiples of 16
// bytes. `scalars_near`: gate and beta strides are within kLongestScalarStride. `longest_key`: of Hopper's kernel. Lengths are
// no input: what a sequence is packed with must not choose its kernel.
enum class PrefillKernel {
    wgmma,
    mma,
    channels,  // with a gate for every channel: Hopper's
    channels_mma,
    recurrent,
};
inline constexpr int kFirstWithMma = 80;

inline PrefillKernel prefill_kernel(bool rows_fit, bool scalars_near, int dk, int capability, WantedPrefill wanted,
                                    int longest_key = kPrefillLongestKey) {
    if (!rows_fit || wanted == WantedPrefill::recurrent || capability < kFirstWithMma) return PrefillKernel::recurrent;
    const bool fits_wgmma = capability == kHopper && dk <= longest_key && scalars_near;
    return fits_wgmma && wanted == WantedPrefill::automatic ? PrefillKernel::wgmma : PrefillKernel::mma;
}

// Why not a faster kernel; the arguments are prefill_kernel's. GDN_PREFILL is the reason only where it decides.
inline std::string explain_prefill_kernel(bool rows_fit, bool scalars_near, int dk, int capability, WantedPrefill wanted,
                                          int longest_key = kPrefillLongestKey) {
    const std::string forced = fmt::format("GDN_PREFILL={}", name_of(wanted));
    switch (prefill_kernel(rows_fit, scalars_near, dk, capability, wanted, longest_key)) {
        case PrefillKernel::wgmma:
            return "the chunked form on Hopper's tensor cores: rows start on 16 bytes, keys are short enough";
        case PrefillKernel::mma:
            return "the chunked form on tensor cores, not in Hopper's own kernel: " +
                   (capability != kHopper ? "the GPU is not a Hopper"
                    : dk > longest_key    ? fmt::format("dk {} is above {}", dk, longest_key)
                    : !scalars_near       ? "tokens of beta or gate lie far apart"
                                          : forced);
        default:
            break;
    }
    return "token by token: " +
           (wanted == WantedPrefill::recurrent
                ? forced
                : "tensor cores take rows that start on 16 bytes, a token or more, and at most 65535 sequences");
}

// With a gate for every channel of the key. `fits`: rows as above, and gates in pairs of channels; `fits_hopper`: Hopper's
// kernels take the call.
inline PrefillKernel channel_kernel(bool fits, bool fits_hopper, int capability, WantedPrefill wanted) {
    if (wanted == WantedPrefill::automatic && capability == kHopper && fits_hopper) return PrefillKernel::channels;
    const bool fits_mma = fits && wanted != WantedPrefill::recurrent && capability >= kFirstWithMma;
    return fits_mma ? PrefillKernel::channels_mma : PrefillKernel::recurrent;
}

inline std::string explain_channel_kernel(bool fits, bool fits_hopper, int capability, WantedPrefill wanted) {
    const std::string forced = fmt::format("GDN_PREFILL={}", name_of(wanted)), gates = "a gate for every channel of the key: ";
    switch (channel_kernel(fits, fits_hopper, capability, wanted)) {
        case PrefillKernel::channels:
            return gates + "by chunks on Hopper's tensor cores";
        case PrefillKernel::channels_mma:
            return gates + "by chunks on tensor cores, not in Hopper's own kernels: " +
                   (capability != kHopper ? "the GPU is not a Hopper"
                    : !fits_hopper        ? fmt::format("they take dk up to {}", kChannelsLongestKey)
                                          : forced);
        default:
            break;
    }
    return gates + "token by token: " +
           (wanted == WantedPrefill::recurrent ? forced
                                               : "tensor cores take rows that start on 16 bytes, a token or more, and at most "
                                                 "65535 sequences");
}

}  // namespace gdn_cuda::gdn
