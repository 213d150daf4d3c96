// Steps on int8 states of many heads on the host: when they are taken, and how warps share the rows.
#pragma once

#include <algorithm>
#include <gdn_cuda/kernels/recurrence/code_step_plan.cuh>
#include <string>

#include "../../launch/spec.hpp"
#include "wanted_switch.hpp"

namespace gdn_cuda::gdn {

inline const jit::Setting kDecodeCodesVariable({"GDN_DECODE_CODES", "auto",
                                                "whether one token on int8 states with one decay for each head takes "
                                                "gdn/decode_codes or scan/selective_step_codes, where they can: auto (where "
                                                "heads are many), 0 or 1"},
                                               "auto, 0 or 1", parse_wanted_switch);

inline CodeStepUnits code_step_units(const CodeStepConfig& config, i64 sequences, int heads, int rows, int heads_per_key,
                                     int multiprocessors) {
    constexpr int kWarps = CodeStepConfig::kWarps;
    const i64 all = sequences * heads, most_warps = i64{multiprocessors} * config.blocks * kWarps;
    const int tiles = rows / CodeStepConfig::kTileRows;
    int bits = 0;
    while (tiles % (2 << bits) == 0 && (all << (bits + 1)) <= most_warps) ++bits;
    const i64 units = all << bits, warps = kWarps * std::max(ceil_div(std::min(most_warps, units), kWarps), i64{1});
    const int columns = heads << bits;
    return {.units = static_cast<int>(units),
            .columns = columns,
            .tiles = tiles >> bits,
            .part_bits = bits,
            .warps = static_cast<int>(warps),
            .sequences_ahead = static_cast<int>(warps / std::max(columns, 1)),
            .columns_ahead = static_cast<int>(warps % std::max(columns, 1)),
            .key_inverse = heads_per_key == 1 ? 0 : ~0u / static_cast<unsigned>(heads_per_key) + 1};
}
inline Blocks code_step_blocks(const CodeStepUnits& units) {
    return {units.warps / CodeStepConfig::kWarps, 1, 1};
}
inline auto explain_code_step(const CodeStepUnits& units) {
    return [=](const auto& device) -> std::string {
        return fmt::format("{} heads of int8 states in {} parts each for {} warps on {} multiprocessors",
                           units.units >> units.part_bits, 1 << units.part_bits, units.warps, device.multiprocessors);
    };
}

}  // namespace gdn_cuda::gdn
