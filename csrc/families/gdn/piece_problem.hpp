// What the pieces of the chunked form are asked for.
#pragma once

#include <array>
#include <gdn_cuda/kernels/common/types.cuh>

namespace gdn_cuda::gdn {

// The pieces of the chunked form. Rows that do not start on 16 bytes have a configuration of their own.
struct PieceProblem {
    i64 sequences;
    int heads, dk, dv;
    DType state;
    bool aligned;
};

inline constexpr std::array kPieceHeadK = {128, 64, 256};
constexpr int piece_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 128 ? 128 : 256;
}

}  // namespace gdn_cuda::gdn
