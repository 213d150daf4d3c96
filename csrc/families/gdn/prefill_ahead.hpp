// Host side of gdn/prefill_ahead: how many blocks and launches, and their estimated time.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/gdn/prefill_ahead/plan.cuh>
#include <limits>
#include <string>

#include "../../kernels/spec.hpp"
#include "prefill_problem.hpp"

namespace gdn_cuda::gdn {

// How a problem is spread over blocks and launches, and its workspace in 32-bit words.
struct PrefillAheadChoice {
    i64 pairs = 0;      // of sequences and value heads
    int preparers = 0;  // blocks of a pair that prepare; 0: they and the others are more than the device has multiprocessors
    int tiles = 0;      // blocks of a pair that own rows
    int window = 0, most_chunks = 0;
    i64 records = 0, carried = 0;

    explicit operator bool() const { return preparers > 0; }
    int launches() const { return static_cast<int>(ceil_div(i64{most_chunks}, i64{window})); }
    i64 counts() const { return preparers > 0 ? pairs * most_chunks : 0; }
    i64 workspace() const { return records + carried; }
};

inline i64 prefill_chunks(i64 tokens) {
    return std::max<i64>(ceil_div(tokens, kChunk), 1);
}

inline constexpr i64 kPrefillRecordWords = sizeof(PrefillRecord<PrefillAheadConfig{128, DType::bf16}.block()>) / 4,
                     kMostPrefillRecordWords = i64{1} << 26;

inline PrefillAheadChoice prefill_ahead_choice(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    constexpr int kLeastPreparers = 2, kMostPreparers = 3;  // with one, a chunk takes as long as in gdn/prefill
    constexpr i64 kShortestWindow = 64;
    PrefillAheadChoice choice{.pairs = problem.sequences * problem.heads,
                              .tiles = static_cast<int>(ceil_div(problem.dv, kValueRows))};
    if (choice.pairs == 0 || choice.tiles == 0) return {};
    const i64 preparers = device.multiprocessors / choice.pairs - choice.tiles;
    const i64 chunks = prefill_chunks(problem.longest());
    if (preparers < kLeastPreparers || chunks > std::numeric_limits<int>::max() / choice.pairs) return {};
    choice.preparers = static_cast<int>(std::min<i64>(preparers, kMostPreparers));
    choice.most_chunks = static_cast<int>(chunks);
    choice.window = static_cast<int>(
        std::min(chunks, std::max(kMostPrefillRecordWords / (kPrefillRecordWords * choice.pairs), kShortestWindow)));
    choice.records = choice.pairs * choice.window * kPrefillRecordWords;
    choice.carried = choice.launches() > 1 ? choice.pairs * problem.dv * problem.dk : 0;
    return choice;
}

// Estimated ns, from the time of a chunk on an H200, and what a launch takes longer to start than gdn/prefill, as its first
// chunk waits for another block.
inline double prefill_ahead_ns(const PrefillProblem& problem, const jit::DeviceTraits& device) {
    constexpr double kChunkNs = 1220, kLaunchNs = 6000;
    const PrefillAheadChoice choice = prefill_ahead_choice(problem, device);
    if (!choice) return std::numeric_limits<double>::infinity();
    return static_cast<double>(prefill_chunks(problem.tokens)) * kChunkNs + choice.launches() * kLaunchNs;
}

inline constexpr std::array kPrefillAheadConfigurations = [] {
    std::array<PrefillAheadConfig, 6> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {128, 96, 64}) all[n++] = {.head_k = head_k, .io = io};
    return all;
}();

struct PrefillAhead {
    using Config = PrefillAheadConfig;
    using Args = PrefillAheadArgs;
    static constexpr const char *family = "gdn", *name = "prefill_ahead", *config_type = "PrefillAheadConfig",
                                *args_type = "PrefillAheadArgs";
    static constexpr const char* summary = "prefill of few heads: blocks that prepare chunks, and blocks that own the state";
    static constexpr int min_capability = 90, max_capability = 90;
    static constexpr bool uses_cutlass = true;

    static std::span<const Config> configurations() { return kPrefillAheadConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return std::max(plan_bytes<kPrefillAheadConfigurations, Preparer>(config, kAll),
                        plan_bytes<kPrefillAheadConfigurations, Owner>(config, kAll));
    }

    // A launch for each window of chunks.
    static void run(const Config& config, const PrefillAheadChoice& choice, const PrefillArgs& prefill, float* workspace,
                    unsigned* counts, const Target& target, const auto& why) {
        Args args{.prefill = prefill,
                  .records = workspace,
                  .have = counts,
                  .carried = workspace + choice.records,
                  .pairs = static_cast<int>(choice.pairs),
                  .preparers = choice.preparers,
                  .tiles = choice.tiles,
                  .first_chunk = 0,
                  .window = choice.window,
                  .most_chunks = choice.most_chunks};
        const i64 blocks = choice.pairs * (choice.preparers + choice.tiles);
        for (; args.first_chunk < choice.most_chunks; args.first_chunk += choice.window)
            launch<PrefillAhead>(config, args, {blocks, 1, 1}, target, why);
    }

  private:
    template <PrefillAheadConfig kConfig>
    using Preparer = PrefillPreparerPlan<kConfig.block()>;
    template <PrefillAheadConfig kConfig>
    using Owner = PrefillOwnerPlan<kConfig.block()>;
    static constexpr auto kAll = std::make_index_sequence<kPrefillAheadConfigurations.size()>();
};

}  // namespace gdn_cuda::gdn
