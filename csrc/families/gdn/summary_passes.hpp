// The launches of chunked_summary on Hopper.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <string>
#include <utility>

#include "prepared.hpp"
#include "summary.hpp"

namespace gdn_cuda::gdn {

// The launches of a call whose gates are logarithms of decays, and betas. Summaries and states are dense.
struct SummaryPasses {
    GdnCall call;  // dv: L's rows
    DType io;
    PrefillTensors tensors;
    i64 packed_tokens;   // 0: padded
    const float* state;  // before each pair's part, or nullptr
    float* out;
    bool transition;  // whether M is wanted

    i64 pairs() const { return i64{call.sequences} * call.heads; }
    // Segments after the first ones, at most: n chunks have n / kShortestSummarySegment. Overlapping sequences get fewer.
    i64 most_results() const {
        const auto others = [](i64 chunks) { return i64{std::max(summary_segments_of(static_cast<int>(chunks)) - 1, 0)}; };
        if (packed_tokens == 0) return pairs() * others(ceil_div(i64{call.tokens}, i64{kChunk}));
        const i64 chunks = packed_tokens / kChunk + call.sequences;
        return call.heads * std::min(chunks / kShortestSummarySegment, call.sequences * others(chunks));
    }

    void run(const Tensor& like, const Target& target) const {
        if (pairs() == 0 || call.dk == 0) return;
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
        const Tensor buffer = torch::stable::new_empty(like, {words}, ScalarType::Float);
        auto* const memory = static_cast<float*>(memory_of(buffer));
        int* const begins = reinterpret_cast<int*>(memory + first);
        const SummaryTailsArgs found{.call = call,
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
        launch<SummaryTails>(config, found, {call.heads, call.sequences, 1}, target,
                             [](const auto&) { return std::string("of heads that decay fast, only the last chunks count"); });
        if (!call.qk_norm)
            launch<SummaryKeys>({.warps = kSummaryKeysConfigurations.front().warps, .io = io}, found,
                                {kSlices, call.heads / call.heads_per_key, call.sequences}, target,
                                [](const auto&) { return std::string("keys may have any norm"); });
        launch<SummarySegments>(kSummarySegmentsConfiguration, found, {1, 1, 1}, target, [&](const auto&) {
            return fmt::format("{} tails, at most {} segments after their first ones", pairs(), most);
        });
        run_segments(found, memory + results, target);
    }

  private:
    void run_segments(const SummaryTailsArgs& found, float* results, const Target& target) const {
        const i64 rows = i64{call.dv} + (transition ? call.dk : 0);
        const SummaryConfig config{.head_k = chunked_config(call.dk, 2, io).head_k, .io = io};
        const auto map = [&](const jit::TiledTensor& tensor) { return jit::tile_map(tensor, io, kChunk, target.ordinal); };
        const i64 tile = config.block().rows_per_block(), value_tiles = ceil_div(i64{call.dv}, tile);
        SummaryArgs args{.chunked = {},
                         .state = state,
                         .out = out,
                         .rows = rows,
                         .results = results,
                         .value_tiles = static_cast<int>(value_tiles),
                         .count = found.count,
                         .segments = found.segments};
        ChunkedArgs& chunked = args.chunked;
        chunked.query = chunked.key = map(tensors.key);
        chunked.value = chunked.output = map(tensors.value);
        chunked.call = call;
        chunked.state = DType::f32;
        chunked.segments = 1;
        chunked.takes = LaunchTakes::every_call;
        launch<Summary>(config, args, {pairs() + found.most_results, value_tiles + ceil_div(i64{call.dk}, tile), 1}, target,
                        [&](const auto& on) {
                            return fmt::format("{} rows of L or M a block, for {} multiprocessors", tile, on.multiprocessors);
                        });
        const SummaryFoldConfig& fold = SummaryFold::kConfigurations.front();
        const i64 padded_dv = ceil_div(i64{call.dv}, i64{fold.rows}) * fold.rows;
        launch<SummaryFold>(fold,
                            {.state = state,
                             .results = results,
                             .out = out,
                             .tails = found.tails,
                             .rows = rows,
                             .dv = call.dv,
                             .padded_dv = static_cast<int>(padded_dv),
                             .dk = call.dk},
                            {pairs(), (padded_dv + (transition ? call.dk : 0)) / fold.rows, 1}, target,
                            [](const auto&) { return std::string("segments of a tail, one after another"); });
    }
};

}  // namespace gdn_cuda::gdn
