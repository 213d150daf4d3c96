// common/transposed_copy on the host: its Spec.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <gdn_cuda/kernels/common/transposed_copy_plan.cuh>
#include <initializer_list>

#include "../../launch/spec.hpp"

namespace gdn_cuda::common {

struct TransposedCopy {
    GDN_KERNEL(TransposedCopy, common, transposed_copy, TransposedCopyConfig, TransposedCopyArgs,
               "copies a tensor from contiguous tokens to contiguous channels, or the reverse");

    static constexpr std::array kConfigurations = {Config{.element_bytes = 2}, Config{.element_bytes = 4}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }  // statically allocated

    // Sets whether rows of `from` and of `to` consist of whole, 16-byte aligned vectors.
    static void choose_vectors(const Config& config, Args& args) {
        const auto are_vectors = [&](const void* data, std::initializer_list<i64> counts) {
            return reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
                   std::ranges::all_of(counts, [&](i64 count) { return count % config.per_vector() == 0; });
        };
        args.loads_vectors = are_vectors(args.from, {args.batch, args.row, args.columns});
        args.stores_vectors = are_vectors(args.to, {args.rows});
    }
    static Blocks blocks(const Args& args, i64 batches) { return {batches * args.row_tiles() * args.column_tiles(), 1, 1}; }
    static void run(const Config& config, Args args, i64 batches, const Target& target) {
        if (batches == 0 || args.rows == 0 || args.columns == 0) return;
        choose_vectors(config, args);
        const auto moved = [](bool vectors) { return vectors ? "16 bytes" : "an element"; };
        launch<TransposedCopy>(config, args, blocks(args, batches), target, [&](const auto&) {
            return fmt::format("a copy in the other layout, by tiles of {} by {}; a lane loads {} and stores {}", Config::kTile,
                               Config::kTile, moved(args.loads_vectors), moved(args.stores_vectors));
        });
    }
};

}  // namespace gdn_cuda::common
