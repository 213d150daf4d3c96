// The launches that find the segments of tails, and put their summaries together.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "prepared.hpp"
#include "summary.hpp"

namespace gdn_cuda::gdn {

// The segments of the tails of a call, in memory of their own.
struct FoundSegments {
    Tensor memory;
    SummaryTailsArgs args;
    float* results;
    i64 listed;  // at most

    ListedSegments with(i64 value_tiles, bool transition) const {
        return {.segments = args.segments,
                .count = args.count,
                .results = results,
                .value_tiles = static_cast<int>(value_tiles),
                .transition = transition};
    }
};

// The call has logarithms of decays as gates, and betas. Each state of its `initial` and `last` is contiguous fp32.
struct SummaryPasses {
    GdnCall call;  // dv: L's rows
    DType io;
    i64 packed_tokens;  // 0: padded
    bool backward;      // the chain runs from the last chunk to the first

    i64 pairs() const { return i64{call.sequences} * call.heads; }
    // Segments after the first ones, at most: n chunks have n / kShortestSummarySegment. Overlapping sequences get fewer.
    i64 most_results() const {
        const auto others = [](i64 chunks) { return i64{std::max(summary_segments_of(static_cast<int>(chunks)) - 1, 0)}; };
        if (packed_tokens == 0) return pairs() * others(ceil_div(i64{call.tokens}, i64{kChunk}));
        const i64 chunks = packed_tokens / kChunk + call.sequences;
        return call.heads * std::min(chunks / kShortestSummarySegment, call.sequences * others(chunks));
    }

    FoundSegments find(const Tensor& like, const Target& target) const {
        constexpr int kSlices = 64;
        const i64 most = most_results(), segments = pairs() + most, result = (i64{call.dv} + call.dk) * call.dk,
                  places = packed_tokens > 0 ? packed_tokens / kChunk + call.sequences
                                             : call.sequences * ceil_div(i64{call.tokens}, i64{kChunk});
        // Parts of one buffer, of 32-bit words.
        i64 words = 0;
        const auto room = [&](i64 count) { return std::exchange(words, words + ceil_div(count, i64{4}) * 4); };
        const i64 results = room(most * result), growths = room(call.heads * places), first = room(pairs() + 1),
                  by_keys = room(call.qk_norm ? 0 : pairs() * kSlices),
                  listed = room(segments * i64{sizeof(SummarySegment) / sizeof(int)}),
                  tails = room(pairs() * i64{sizeof(SummaryTail) / sizeof(int)});
        const Tensor buffer = new_tensor(like, {words}, ScalarType::Float);
        auto* const memory = static_cast<float*>(memory_of(buffer));
        int* const begins = reinterpret_cast<int*>(memory + first);
        const SummaryTailsArgs found{.call = call,
                                     .backward = backward,
                                     .growths = memory + growths,
                                     .places = places,
                                     .first = begins,
                                     .by_keys = call.qk_norm ? nullptr : memory + by_keys,
                                     .slices = kSlices,
                                     .segments = reinterpret_cast<SummarySegment*>(memory + listed),
                                     .count = begins + pairs(),
                                     .tails = reinterpret_cast<SummaryTail*>(memory + tails),
                                     .most_results = static_cast<int>(most)};
        const SummaryTailsConfig& config = kSummaryTailsConfiguration;
        const i64 at_once = i64{jit::device_traits(target.ordinal).multiprocessors} * 8;
        launch<SummaryGates>(config, found, {std::min(ceil_div(places * call.heads, i64{config.threads()}), at_once), 1, 1},
                             target, [&](const auto&) { return fmt::format("{} chunks of {} heads", places, call.heads); });
        launch<SummaryTails>(config, found, {call.heads, call.sequences, 1}, target, [&](const auto&) {
            return fmt::format("of heads that decay fast, only the {} chunks count", backward ? "first" : "last");
        });
        if (!call.qk_norm)
            launch<SummaryKeys>({.warps = kSummaryKeysConfigurations.front().warps, .io = io}, found,
                                {kSlices, call.heads / call.heads_per_key, call.sequences}, target,
                                [](const auto&) { return std::string("keys may have any norm"); });
        launch<SummarySegments>(kSummarySegmentsConfiguration, found, {1, 1, 1}, target, [&](const auto&) {
            return fmt::format("{} tails, at most {} segments after their first ones", pairs(), most);
        });
        return {.memory = buffer, .args = found, .results = memory + results, .listed = segments};
    }

    void fold(const FoundSegments& found, bool transition, const Target& target) const {
        const SummaryFoldConfig& config = SummaryFold::kConfigurations.front();
        const i64 padded_dv = ceil_div(i64{call.dv}, i64{config.rows}) * config.rows;
        launch<SummaryFold>(config,
                            {.state = call.initial,
                             .out = call.last,
                             .results = found.results,
                             .tails = found.args.tails,
                             .heads = call.heads,
                             .dv = call.dv,
                             .padded_dv = static_cast<int>(padded_dv),
                             .dk = call.dk},
                            {pairs(), (padded_dv + (transition ? call.dk : 0)) / config.rows, 1}, target,
                            [](const auto&) { return std::string("segments of a tail, one after another"); });
    }
};

}  // namespace gdn_cuda::gdn
