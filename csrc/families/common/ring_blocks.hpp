// How the rows of states with rings are spread over blocks. A problem has blocks(rows), and smallest_block(): the least rows
// that a block has.
#pragma once

#include <algorithm>

#include "../../launch/spec.hpp"

namespace gdn_cuda {

template <class Problem>
i64 ring_blocks_in_all(const Problem& problem, int rows) {
    const Blocks blocks = problem.blocks(rows);
    return blocks[0] * blocks[1] * blocks[2];
}
// Rows of a block: fewer than the most where there would be fewer blocks than this.
inline constexpr i64 kRingBlocksPerMultiprocessor = 2;
template <class Problem>
int ring_rows(const Problem& problem, int most, const jit::DeviceTraits& device) {
    const int step = problem.smallest_block();
    int rows = most;
    while (rows > step && ring_blocks_in_all(problem, rows) < kRingBlocksPerMultiprocessor * device.multiprocessors)
        rows = std::max(step, rows / 2 / step * step);
    return rows;
}
template <class Kernel, class Problem>
void launch_ring(const typename Kernel::Config& config, const Problem& problem, const typename Kernel::Args& args,
                 const Target& target) {
    launch<Kernel>(config, args, problem.blocks(args.block_rows), target, [&](const jit::DeviceTraits& device) {
        return fmt::format("{} blocks of {} rows for {} multiprocessors; a ring of {} tokens",
                           ring_blocks_in_all(problem, args.block_rows), args.block_rows, device.multiprocessors, args.entries);
    });
}

}  // namespace gdn_cuda
