// The problem that the pieces of the chunked form solve.
#pragma once

#include <array>
#include <gdn_cuda/kernels/common/types.cuh>
#include <string>

#include "../../jit/text.hpp"

namespace gdn_cuda::gdn {

// `aligned`: all rows start at multiples of 16 bytes; other rows have their own configurations.
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

inline std::string explain_piece(const PieceProblem& problem, int head_k, i64 blocks) {
    return fmt::format("{}dk {} in tiles of {}; {} blocks",
                       problem.aligned ? "" : "rows do not start on 16 bytes: element-wise loads; ", problem.dk, head_k,
                       blocks);
}

}  // namespace gdn_cuda::gdn
