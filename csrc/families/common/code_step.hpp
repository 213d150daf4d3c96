// Steps on int8 states of many heads on the host: when they are taken, and how warps share the rows.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/recurrence/code_step_plan.cuh>

#include "../../launch/spec.hpp"
#include "wanted_switch.hpp"

namespace gdn_cuda::gdn {

inline const jit::Setting kDecodeCodesVariable({"GDN_DECODE_CODES", "auto",
                                                "whether one token on int8 states with one decay for each head takes "
                                                "gdn/decode_codes or scan/selective_step_codes, where they can: auto (where "
                                                "heads are many), 0 or 1"},
                                               "auto, 0 or 1", parse_wanted_switch);

// Fewer heads leave most warps without a second one to load.
constexpr bool has_many_codes(i64 heads, int multiprocessors) {
    return heads >= i64{12} * multiprocessors;
}

struct CodeStepGrid {
    i64 units, blocks;
    CodeStepUnits args;
};
inline CodeStepGrid code_step_grid(const CodeStepConfig& config, i64 sequences, int heads, int rows, int heads_per_key,
                                   int multiprocessors) {
    constexpr int kWarps = CodeStepConfig::kWarps;
    const i64 all = sequences * heads, most_warps = i64{multiprocessors} * config.blocks * kWarps;
    const int tiles = rows / CodeStepConfig::kTileRows;
    int bits = 0;
    while (tiles % (2 << bits) == 0 && (all << (bits + 1)) <= most_warps) ++bits;
    const i64 units = all << bits, blocks = std::max(ceil_div(std::min(most_warps, units), kWarps), i64{1});
    const i64 warps = blocks * kWarps;
    return {units,
            blocks,
            {.columns = heads << bits,
             .tiles = tiles >> bits,
             .part_bits = bits,
             .per_warp = static_cast<int>(units / warps),
             .longer = static_cast<int>(units % warps),
             .key_inverse = heads_per_key == 1 ? 0 : ~0u / static_cast<unsigned>(heads_per_key) + 1}};
}
inline auto explain_code_step(const CodeStepGrid& grid) {
    return [=](const auto& device) {
        const int bits = grid.args.part_bits;
        return fmt::format("{} heads of int8 states in {} parts each for {} warps on {} multiprocessors", grid.units >> bits,
                           1 << bits, grid.blocks * CodeStepConfig::kWarps, device.multiprocessors);
    };
}

}  // namespace gdn_cuda::gdn
