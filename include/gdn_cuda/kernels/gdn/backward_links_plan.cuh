// Configuration and arguments of gdn/backward_links, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/segments.cuh>

namespace gdn_cuda::gdn {

struct BackwardLinksConfig {
    int columns, rows;  // of a block

    constexpr bool operator==(const BackwardLinksConfig&) const = default;

    GDN_FIELDS(columns, rows)

    static constexpr int kParts = 4;  // threads that share a column
    GDN_HOST_DEVICE constexpr int threads() const { return kParts * columns; }
};

struct BackwardLinksArgs {
    ChainSegments chains[2];
    int heads, dv, dk;
};

}  // namespace gdn_cuda::gdn
