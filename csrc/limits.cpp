#include "limits.hpp"

#include <gdn_cuda/kernels/gdn/chunk_common.cuh>

#include "families/structured/toeplitz_methods.hpp"

namespace gdn_cuda {

Limits limits() {
    return {.gdn_chunk = gdn::kChunk,
            .toeplitz_general = structured::kToeplitzEliminateLongestPortable,
            .toeplitz_positive = static_cast<int>(structured::ToeplitzLimits{}.positive())};
}

}  // namespace gdn_cuda
