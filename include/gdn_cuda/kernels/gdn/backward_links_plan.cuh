// Configuration and arguments of gdn/backward_links, for host and device.
#pragma once

#include <gdn_cuda/kernels/gdn/backward_chain/segments.cuh>

namespace gdn_cuda::gdn {

struct BackwardLinksConfig {
    int columns, rows;  // threads, each with a column; rows of a block

    constexpr bool operator==(const BackwardLinksConfig&) const = default;

    GDN_FIELDS(columns, rows)
};

struct BackwardLinksArgs {
    ChainSegments chains[2];
    int dv, dk;
};

}  // namespace gdn_cuda::gdn
