// The part of CUTLASS's header of this name that kernels use, on a CPU.
#pragma once

#include <cstdint>

#include "grid.hpp"
#include "tma.hpp"

namespace cute {

inline void cluster_arrive_relaxed() {
    emulator::arrive_in_cluster();
}
inline void cluster_arrive() {
    emulator::arrive_in_cluster();
}
inline void cluster_wait() {
    emulator::wait_for_cluster();
}
inline void cluster_sync() {
    emulator::sync_cluster();
}
inline std::uint32_t block_rank_in_cluster() {
    return emulator::rank_in_cluster();
}
inline uint3 cluster_shape() {
    return {emulator::blocks_of_cluster(), 1, 1};
}
inline std::uint32_t set_block_rank(std::uint32_t address, std::uint32_t rank) {
    return emulator::address_in_block(address, rank);
}
inline void store_shared_remote(std::uint32_t x, std::uint32_t address, std::uint32_t mbarrier, std::uint32_t rank) {
    emulator::store_async(x, 0, sizeof x, set_block_rank(address, rank), set_block_rank(mbarrier, rank));
}
inline std::uint32_t elect_one_sync() {
    emulator::sync_warp("elect.sync");
    return emulator::lane() == 0;
}

}  // namespace cute
