// Host side of gdn/summary, and of the kernels that find the segments of tails and fold them.
#pragma once

#include <array>
#include <gdn_cuda/kernels/gdn/summary/plan.cuh>

#include "../../launch/spec.hpp"
#include "../chunked/launch.hpp"

namespace gdn_cuda::gdn {

inline constexpr SummaryTailsConfig kSummaryTailsConfiguration{.warps = 8}, kSummarySegmentsConfiguration{.warps = 32};
inline constexpr std::array kSummaryTailsConfigurations = {kSummaryTailsConfiguration};
inline constexpr std::array kSummarySegmentsConfigurations = {kSummarySegmentsConfiguration};
inline constexpr std::array kSummaryKeysConfigurations = {SummaryKeysConfig{.warps = 8, .io = DType::bf16},
                                                          SummaryKeysConfig{.warps = 8, .io = DType::f16}};
inline constexpr std::array kSummaryConfigurations = [] {
    std::array<SummaryConfig, 6> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {128, 96, 64}) all[n++] = {.head_k = head_k, .io = io};
    return all;
}();
template <SummaryConfig kConfig>
using SummaryPlan = ChunkedPlan<kConfig.block()>;

struct SummaryGates {
    GDN_KERNEL(SummaryGates, gdn, summary_gates, SummaryTailsConfig, SummaryTailsArgs,
               "by how much the gates of each chunk multiply a state");

    static std::span<const Config> configurations() { return kSummaryTailsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct SummaryTails {
    GDN_KERNEL(SummaryTails, gdn, summary_tails, SummaryTailsConfig, SummaryTailsArgs,
               "where the chunks begin that still matter at the end of a sequence, as gates say");

    static std::span<const Config> configurations() { return kSummaryTailsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct SummaryKeys {
    GDN_KERNEL(SummaryKeys, gdn, summary_keys, SummaryKeysConfig, SummaryTailsArgs,
               "by how much keys that are not normalised may let a state grow");

    static std::span<const Config> configurations() { return kSummaryKeysConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct SummarySegments {
    GDN_KERNEL(SummarySegments, gdn, summary_segments, SummaryTailsConfig, SummaryTailsArgs, "segments of long tails");

    static std::span<const Config> configurations() { return kSummarySegmentsConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};
struct Summary {
    GDN_KERNEL(Summary, gdn, summary, SummaryConfig, SummaryArgs,
               "summaries of segments of sequences, on Hopper's tensor cores", .min_capability = 90, .max_capability = 90,
               .uses_cutlass = true);

    static std::span<const Config> configurations() { return kSummaryConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) { return plan_bytes<kSummaryConfigurations, SummaryPlan>(config); }
};
struct SummaryFold {
    GDN_KERNEL(SummaryFold, gdn, summary_fold, SummaryFoldConfig, SummaryFoldArgs, "summaries of tails from their segments");

    static constexpr std::array kConfigurations = {SummaryFoldConfig{.columns = 128, .rows = 8}};
    static std::span<const Config> configurations() { return kConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config&) { return 0; }
};

}  // namespace gdn_cuda::gdn
