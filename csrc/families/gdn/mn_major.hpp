// Host side of gdn/mn_major: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/mn_major_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

constexpr MnMajorConfig mn_major_config(int element_bytes) {
    return {.element_bytes = element_bytes, .tile = 32, .threads = 256};
}

struct MnMajor {
    GDN_KERNEL(MnMajor, gdn, mn_major, MnMajorConfig, MnMajorArgs,
               "the second-to-last dimension made contiguous, columns padded");

    static constexpr std::array kConfigurations = {mn_major_config(2), mn_major_config(4)};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads; }
    static int shared_bytes(const Config&) { return 0; }  // statically allocated

    static Blocks blocks(const Config& config, const Args& args, i64 matrices) {
        const auto tiles = [&](i64 length, i64 most) { return std::min<i64>(ceil_div(length, config.tile), most); };
        return {matrices, tiles(args.padded_rows, kMostBlocks[1]), tiles(args.columns, kMostBlocks[2])};
    }
    static void run(int element_bytes, const Args& args, i64 matrices, const Target& target) {
        if (matrices == 0 || args.columns == 0 || args.padded_rows == 0) return;
        const Config config = mn_major_config(element_bytes);
        launch<MnMajor>(config, args, blocks(config, args, matrices), target, [&](const auto&) {
            return fmt::format("{} matrices in tiles of {} by {} elements", matrices, config.tile, config.tile);
        });
    }
};

}  // namespace gdn_cuda::gdn
