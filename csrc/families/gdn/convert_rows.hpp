// Host side of gdn/convert_rows: configuration and launch.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/convert_rows_plan.cuh>

#include "../../launch/spec.hpp"

namespace gdn_cuda::gdn {

inline constexpr auto kConvertRowsConfigurations = [] {
    constexpr std::array types = {DType::f32, DType::bf16, DType::f16, DType::i8};
    std::array<ConvertRowsConfig, types.size() * types.size()> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = {types[i / types.size()], types[i % types.size()]};
    return all;
}();

struct ConvertRows {
    GDN_KERNEL(ConvertRows, gdn, convert_rows, ConvertRowsConfig, MoveStatesArgs,
               "states between dtypes, each of contiguous rows");

    static std::span<const Config> configurations() { return kConvertRowsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }

    static bool fits(const Args& args) {
        const GdnCall& call = args.call;
        const auto is_dense = [&](const RecurrentStates& states) {
            const i64 bytes = bytes_of(states.type), alignment = std::min<i64>(16, Config::kColumns * bytes);
            return states.column == 1 && states.row == call.dk && states.slot * bytes % alignment == 0 &&
                   states.head * bytes % alignment == 0 && reinterpret_cast<uintptr_t>(states.data) % alignment == 0;
        };
        return call.dk % Config::kColumns == 0 && i64{call.dv} * call.dk <= (1 << 30) && is_dense(args.from) &&
               is_dense(args.to);
    }
    static void run(const Args& args, const Target& target) {
        if (args.rows == 0 || args.call.heads == 0) return;
        const Config config{args.from.type, args.to.type};
        const i64 blocks = ceil_div(i64{args.call.dv} * args.call.dk, config.block_elements());
        launch<ConvertRows>(config, args, {blocks, args.call.heads, std::min<i64>(args.rows, kMostBlocks[2])}, target,
                            [&](const auto&) { return fmt::format("{} states of {} heads", args.rows, args.call.heads); });
    }
};

}  // namespace gdn_cuda::gdn
