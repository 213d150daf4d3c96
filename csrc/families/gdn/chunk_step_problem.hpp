// The problem of a kernel that does one step of the chunked form: u and w, the states between chunks, or the output.
#pragma once

#include <array>
#include <gdn_cuda/kernels/common/types.cuh>
#include <string>

#include "../../jit/text.hpp"

namespace gdn_cuda::gdn {

// `aligned`: all rows start at multiples of 16 bytes; other rows have their own configurations.
struct ChunkStepProblem {
    i64 sequences;
    int heads, dk, dv;
    DType state;
    bool aligned;
};

inline constexpr std::array kChunkStepHeadK = {128, 64, 256};
constexpr int chunk_step_head_k(int dk) {
    return dk <= 64 ? 64 : dk <= 128 ? 128 : 256;
}

inline std::string explain_chunk_step(const ChunkStepProblem& problem, int head_k, i64 blocks) {
    return fmt::format("{}dk {} in tiles of {}; {} blocks",
                       problem.aligned ? "" : "rows do not start on 16 bytes: element-wise loads; ", problem.dk, head_k,
                       blocks);
}

}  // namespace gdn_cuda::gdn
