// Configuration and arguments of gdn/split_sequences, for host and device.
#pragma once

#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

struct SplitSequencesConfig {
    int warps;

    constexpr bool operator==(const SplitSequencesConfig&) const = default;

    GDN_FIELDS(warps)

    GDN_HOST_DEVICE constexpr int threads() const { return warps * 32; }
};

struct SplitSequencesArgs {
    Tagged cu_seqlens;  // absent: a padded batch, whose sequences follow each other
    Tagged offsets;     // tokens of each sequence's first part
    int sequences, tokens;
    const i64* slots;       // of each sequence
    i64* parts;             // (2 sequences + 1): where parts begin, as cu_seqlens
    i64 *firsts, *seconds;  // (2 sequences) each: the slots of first and of second parts, and -1 for the others
};

}  // namespace gdn_cuda::gdn
