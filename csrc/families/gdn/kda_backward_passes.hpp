// The passes of the backward of gated_delta_rule with a gate for every channel of the key, over as many key heads at a time as
// the workspace holds, or one fewer: groups are of nearly equal size. Segments of the chains have memory of their own.
#pragma once

#include <algorithm>

#include "fold_states.hpp"
#include "kda_backward.hpp"
#include "prepared.hpp"
#include "variables.hpp"
#include "wanted_gradients.hpp"

namespace gdn_cuda::gdn {

struct KdaBackwardPasses {
    GdnCall call;
    DType io;
    Rows output_gradient, query_gradient, key_gradient, value_gradient;
    RecurrentStates initial, final_gradient, initial_gradient;  // fp32, contiguous
    Tagged gate_gradient, beta_gradient;                        // contiguous, or absent
    float* sums;                                                // KdaBackwardGradientsArgs
    WantedGradients wanted;

    i64 chunks() const { return chunk_indices(call.cu_seqlens.data != nullptr, call.sequences, call.tokens, kKdaTokens); }

    // A value head's bytes of each part of what is handed over.
    struct Sizes {
        i64 records, states, by_error;

        i64 bytes_per_head(WantedGradients wanted) const {
            return records + (wanted == WantedGradients::all ? 2 * states + 3 * by_error : 0);
        }
    };
    Sizes sizes() const {
        const int head_k = kda_backward_config(call.dk, io).head_k;
        const i64 record = head_k == 64    ? sizeof(KdaBackwardRecord<64>)
                           : head_k == 128 ? sizeof(KdaBackwardRecord<128>)
                                           : sizeof(KdaBackwardRecord<256>);
        return {chunks() * record, chunks() * call.dv * head_k * 2, chunks() * kKdaTokens * call.dv * 2};
    }

    i64 key_heads() const { return call.heads / call.heads_per_key; }
    // Key heads of a group, where a head of them needs `least` bytes.
    static i64 group_of(i64 all, i64 least, i64 workspace) {
        return all == 0 ? 0 : ceil_div(all, ceil_div(all, least > 0 ? std::clamp<i64>(workspace / least, 1, all) : all));
    }
    i64 least(WantedGradients wanted) const { return sizes().bytes_per_head(wanted) * call.heads_per_key; }
    // Whatever the workspace and the wanted gradients are, so that those have no part in the bits.
    i64 heads_at_once() const {
        return group_of(key_heads(), least(WantedGradients::all), kDefaultWorkspace) * call.heads_per_key;
    }
    int segments(const Target& target) const {
        if (const int wanted = kKdaBackwardSegmentsVariable.value(); wanted > 0) return wanted;
        if (call.sequences == 0) return 1;
        constexpr int kRows = KdaBackwardStatesConfig::rows_per_block();
        const i64 tokens = call.cu_seqlens.data != nullptr ? call.tokens / call.sequences : call.tokens,
                  pairs = heads_at_once() * call.sequences;
        return kda_backward_segments({.pairs = pairs,
                                      .chunks = ceil_div(tokens, i64{kKdaTokens}),
                                      .value_tiles = ceil_div(call.dv, kRows),
                                      .key_tiles = ceil_div(call.dk, kRows),
                                      .fold_blocks = pairs * ceil_div(call.dv, kFoldStatesConfigurations.front().rows)},
                                     jit::device_traits(target.ordinal).multiprocessors);
    }

    static void prefetch(const GdnCall& call, DType io, const Target& target) {
        const KdaBackwardConfig config = kda_backward_config(call.dk, io);
        const KdaBackwardPasses passes{.call = call, .io = io};
        if (passes.segments(target) > 1)
            StatesFold::prefetch(call.dk, call.dv, passes.heads_at_once() * call.sequences, target);
        gdn_cuda::prefetch<KdaBackwardPrepare>(config, target);
        for (const Direction direction : {Direction::backward, Direction::forward})
            gdn_cuda::prefetch<KdaBackwardStates>({config.head_k, io, direction}, target);
        gdn_cuda::prefetch<KdaBackwardGradients>(config, target);
    }

    // `like`: a tensor on the device.
    void run(const Checks& check, std::optional<i64> given, const Tensor& like, const Target& target) const {
        const Sizes sizes = this->sizes();
        const i64 least = sizes.bytes_per_head(wanted) * call.heads_per_key,
                  workspace = given.value_or(std::max(kDefaultWorkspace, least));
        GDN_REQUIRE(check, least <= workspace, "workspace",
                    fmt::format("at least {} bytes, what the backward of one key head needs", least),
                    fmt::format("{}", workspace));
        if (call.heads == 0 || call.sequences == 0) return;
        const i64 most = group_of(key_heads(), least, workspace), groups = ceil_div(key_heads(), most);
        const int segments = this->segments(target);
        const Tensor memory = new_tensor(like, {most * least}, ScalarType::Byte),
                     matrices = new_tensor(like, {segments > 1 ? most * call.heads_per_key * matrices_per_head(segments) : 0},
                                           ScalarType::Float);
        for (i64 group = 0; group < groups; ++group) {
            const i64 first = key_heads() * group / groups, end = key_heads() * (group + 1) / groups;
            run_heads(first, end - first, sizes, static_cast<char*>(memory_of(memory)), segments,
                      static_cast<float*>(memory_of(matrices)), target);
        }
    }

  private:
    static constexpr i64 kDefaultWorkspace = i64{1} << 30;

    i64 matrices_per_head(int segments) const {  // fp32 elements: of S, E and M
        return call.sequences * i64{call.dk} * ((segments - 1) * 2 * i64{call.dv} + segments * i64{call.dk});
    }
    // States through the summaries of segments, in place of U or N.
    void fold(const RecurrentStates& start, int first_head, i64 heads, const KdaBackwardSegments& segments, bool reverse,
              const Target& target) const {
        const auto matrices = [&](const float* data, i64 rows) {
            const i64 head = rows * call.dk;
            return FoldedMatrices{data, call.sequences * heads * head, heads * head, head};
        };
        FoldStatesArgs args{.state = {},
                            .out = nullptr,
                            .additions = matrices(segments.boundaries, call.dv),
                            .transitions = matrices(segments.transitions, call.dk),
                            .every = segments.boundaries,
                            .parts = segments.count - 1,
                            .heads = static_cast<int>(heads),
                            .dv = call.dv,
                            .dk = call.dk,
                            .reverse = reverse};
        if (reverse) args.transitions.data += args.transitions.part;
        if (start.data != nullptr) {
            args.state = {static_cast<const float*>(start.data) + first_head * start.head, 0, start.slot, start.head};
        } else {  // from 0: the first summary is the state after it
            args.state = args.additions;
            args.parts -= 1;
            if (reverse) {
                args.state.data += args.parts * args.additions.part;
            } else {
                args.additions.data += args.additions.part;
                args.every += args.additions.part;
                args.transitions.data += args.transitions.part;
            }
        }
        if (args.parts > 0) StatesFold::run(args, call.sequences, target);
    }
    void run_heads(i64 first_key_head, i64 key_heads, const Sizes& sizes, char* memory, int segments, float* matrices,
                   const Target& target) const {
        const i64 heads = key_heads * call.heads_per_key;
        const int first = static_cast<int>(first_key_head * call.heads_per_key);
        const bool all = wanted == WantedGradients::all;
        char *const states = memory + heads * sizes.records, *const gradients = states + heads * sizes.states,
                    *const by_error = gradients + heads * sizes.states, *const errors = by_error + heads * sizes.by_error;
        const KdaBackwardHandover handover{.records = memory,
                                           .states = all ? states : nullptr,
                                           .state_gradients = all ? gradients : nullptr,
                                           .by_error = all ? by_error : nullptr,
                                           .errors = all ? errors : nullptr,
                                           .chunks = chunks()};
        KdaBackwardPrepare::run({.call = call, .first_head = first, .to = handover}, heads, io, target);
        KdaBackwardStatesArgs chain{.value = output_gradient,
                                    .value_gradient = wanted == WantedGradients::state ? Rows{} : value_gradient,
                                    .initial = final_gradient,
                                    .last = initial_gradient,
                                    .to = handover,
                                    .cu_seqlens = call.cu_seqlens,
                                    .sequences = call.sequences,
                                    .tokens = call.tokens,
                                    .first_head = first,
                                    .dk = call.dk,
                                    .dv = call.dv};
        KdaBackwardStatesArgs states_chain = chain;
        states_chain.value = call.value;
        states_chain.value_gradient = {};
        states_chain.initial = initial;
        states_chain.last = {};
        if (segments > 1) {
            const i64 boundaries = heads * call.sequences * (segments - 1) * call.dv * call.dk;
            chain.segments = {
                .count = segments, .values = true, .boundaries = matrices, .transitions = matrices + 2 * boundaries};
            states_chain.segments = chain.segments;
            states_chain.segments.boundaries += boundaries;
            states_chain.segments.values = all;
            states_chain.segments.first = all && initial.data != nullptr;
            states_chain.segments.last = final_gradient.data != nullptr;
            for (const Direction direction : {Direction::backward, Direction::forward}) {
                KdaBackwardStatesArgs summaries = direction == Direction::backward ? chain : states_chain;
                summaries.value_gradient = {};
                summaries.initial = summaries.last = {};
                summaries.to = {.records = handover.records, .chunks = handover.chunks};
                summaries.segments.summaries = true;
                KdaBackwardStates::run(direction, summaries, heads, io, target);
            }
            fold(final_gradient, first, heads, chain.segments, true, target);
            if (all) fold(initial, first, heads, states_chain.segments, false, target);
        }
        KdaBackwardStates::run(Direction::backward, chain, heads, io, target);
        if (!all) return;
        KdaBackwardStates::run(Direction::forward, states_chain, heads, io, target);
        KdaBackwardGradients::run({.call = call,
                                   .output_gradient = output_gradient,
                                   .query_gradient = query_gradient,
                                   .key_gradient = key_gradient,
                                   .gate_gradient = gate_gradient,
                                   .beta_gradient = beta_gradient,
                                   .sums = sums,
                                   .first_key_head = static_cast<int>(first_key_head),
                                   .from = handover},
                                  key_heads, io, target);
    }
};

}  // namespace gdn_cuda::gdn
