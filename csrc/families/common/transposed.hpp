// Copies a tensor to the other layout of channels and tokens.
#pragma once

#include "../../operators/layout.hpp"
#include "../../operators/operator.hpp"
#include "transposed_copy.hpp"

namespace gdn_cuda::common {

// Copies `rows` (batch, channels, tokens), contiguous along channels or tokens, so that the other of the two is contiguous.
inline Tensor transposed(const Tensor& rows, Layout layout, const Target& target) {
    const View from(rows);
    Tensor to = empty_rows(rows, layout);
    const int row = layout == Layout::tokens ? 2 : 1, column = 3 - row;
    TransposedCopy::run({.element_bytes = bytes_of(*dtype_of(from))},
                        {.from = from.data,
                         .to = memory_of(to),
                         .batch = from.stride(0),
                         .row = from.stride(row),
                         .rows = static_cast<int>(from.size(row)),
                         .columns = static_cast<int>(from.size(column))},
                        from.size(0), target);
    return to;
}

}  // namespace gdn_cuda::common
