// Host side of gdn/prefill_ahead: how many blocks and launches.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/chunked/ahead/plan.cuh>
#include <limits>

#include "../../launch/spec.hpp"
#include "policy.hpp"
#include "problem.hpp"

namespace gdn_cuda::gdn {

inline i64 chunks_in(i64 tokens) {
    return std::max<i64>(ceil_div(tokens, kChunk), 1);
}

// T, P and the factors of a chunk in global memory, in 32-bit words.
inline constexpr i64 kCachedWords = sizeof(CachedChunk<PrefillAheadConfig{128, DType::bf16}.block()>) / 4;

// How a problem is spread over blocks and launches, and its workspace in 32-bit words.
struct AheadSchedule {
    i64 pairs = 0;      // (sequence, value head)
    int preparers = 0;  // blocks of a pair that prepare; 0: they and the others are more than the device has multiprocessors
    int row_tiles = 0;  // blocks of a pair that own rows
    int window = 0, most_chunks = 0;
    i64 cached_words = 0, carried_words = 0;

    explicit operator bool() const { return preparers > 0; }
    int launches() const { return static_cast<int>(ceil_div(i64{most_chunks}, i64{window})); }
    i64 counts() const { return preparers > 0 ? pairs * most_chunks : 0; }
    i64 workspace() const { return cached_words + carried_words; }
};

inline AheadSchedule ahead_schedule(const ChunkedProblem& problem, int multiprocessors, const ChunkedPolicy& policy) {
    AheadSchedule schedule{.pairs = problem.sequences * problem.heads,
                           .row_tiles = static_cast<int>(ceil_div(problem.dv, kValueRows))};
    if (schedule.pairs == 0 || schedule.row_tiles == 0 || problem.is_wide()) return {};
    const i64 preparers = multiprocessors / schedule.pairs - schedule.row_tiles;
    const i64 chunks = chunks_in(problem.longest());
    if (preparers < policy.least_preparers || chunks > std::numeric_limits<int>::max() / schedule.pairs) return {};
    schedule.preparers = static_cast<int>(std::min<i64>(preparers, policy.most_preparers));
    schedule.most_chunks = static_cast<int>(chunks);
    schedule.window = static_cast<int>(
        std::min(chunks, std::max(policy.most_cached_words / (kCachedWords * schedule.pairs), policy.shortest_window)));
    schedule.cached_words = schedule.pairs * schedule.window * kCachedWords;
    schedule.carried_words = schedule.launches() > 1 ? schedule.pairs * problem.dv * problem.dk : 0;
    return schedule;
}

inline constexpr std::array kPrefillAheadConfigurations = [] {
    std::array<PrefillAheadConfig, 6> all{};
    size_t n = 0;
    for (const DType io : {DType::bf16, DType::f16})
        for (const int head_k : {128, 96, 64}) all[n++] = {.head_k = head_k, .io = io};
    return all;
}();

struct PrefillAhead {
    GDN_KERNEL(PrefillAhead, gdn, prefill_ahead, PrefillAheadConfig, PrefillAheadArgs,
               "prefill of few heads: blocks that prepare chunks, and blocks that own the state", .min_capability = 90,
               .max_capability = 90, .uses_cutlass = true);

    static std::span<const Config> configurations() { return kPrefillAheadConfigurations; }
    static int threads(const Config& config) { return config.threads(); }
    static int shared_bytes(const Config& config) {
        return std::max(plan_bytes<kPrefillAheadConfigurations, Preparer>(config),
                        plan_bytes<kPrefillAheadConfigurations, Owner>(config));
    }

    // A launch for each window of chunks.
    static void run(const Config& config, const AheadSchedule& schedule, const ChunkedArgs& prefill, float* workspace,
                    unsigned* counts, const Target& target, const auto& why) {
        Args args{.prefill = prefill,
                  .cached = workspace,
                  .cached_count = counts,
                  .carried = workspace + schedule.cached_words,
                  .pairs = static_cast<int>(schedule.pairs),
                  .preparers = schedule.preparers,
                  .row_tiles = schedule.row_tiles,
                  .first_chunk = 0,
                  .window = schedule.window,
                  .most_chunks = schedule.most_chunks};
        const i64 blocks = schedule.pairs * (schedule.preparers + schedule.row_tiles);
        for (; args.first_chunk < schedule.most_chunks; args.first_chunk += schedule.window)
            launch<PrefillAhead>(config, args, {blocks, 1, 1}, target, why);
    }

  private:
    template <PrefillAheadConfig kConfig>
    using Preparer = PreparerPlan<kConfig.block()>;
    template <PrefillAheadConfig kConfig>
    using Owner = OwnerPlan<kConfig.block()>;
};

}  // namespace gdn_cuda::gdn
