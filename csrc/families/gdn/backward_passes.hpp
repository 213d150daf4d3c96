// The passes of the backward of gated_delta_rule, over as many heads and tokens at a time as the workspace holds.
#pragma once

#include <algorithm>

#include "backward_chain.hpp"
#include "backward_gradients.hpp"
#include "backward_mma.hpp"
#include "kda_gradients.hpp"
#include "kda_prepare.hpp"
#include "prepared.hpp"
#include "summary_passes.hpp"
#include "wanted_gradients.hpp"

namespace gdn_cuda::gdn {

// What the passes hand over, for tokens in `chunks` chunks of all sequences; all parts of a call use the same memory, one after
// another. The gradients of values and of the state need the first three, that of the state alone the first two.
struct BackwardWorkspace {
    i64 chunks, scalars, prepared, states, errors;  // a head's: chunks, and bytes of each part

    // channels: a gate for every channel of the key.
    BackwardWorkspace(const Sequences& sequences, i64 chunks, bool hopper, bool channels)
        : chunks(chunks),
          scalars(channels ? 0 : chunks * static_cast<i64>(sizeof(ChunkScalars))),
          prepared(!hopper ? 0 : chunks * static_cast<i64>(channels ? sizeof(KdaTrainingRecord) : sizeof(PreparedChunk))),
          states(chunks * sequences.dv * sequences.dk * 2),
          errors(chunks * 2 * kChunk * sequences.dv * 2) {}

    i64 bytes_of_head(WantedGradients wanted) const {
        if (wanted == WantedGradients::state) return scalars + prepared;
        return scalars + prepared + states + (wanted == WantedGradients::all ? states + errors : 0);
    }
    BackwardHandover of(char* memory, i64 heads) const {
        char *const after_prepared = memory + heads * prepared, *const first = after_prepared + heads * scalars;
        return {.scalars = scalars > 0 ? reinterpret_cast<ChunkScalars*>(after_prepared) : nullptr,
                .states = first + heads * states,
                .state_gradients = first,
                .errors = first + 2 * heads * states,
                .prepared = memory,
                .chunks = chunks};
    }
};

// What is computed at a time: value heads, those of whole key heads, and tokens of every sequence.
struct BackwardPart {
    i64 head, heads, token, tokens;
};

inline Rows from_head(Rows rows, i64 head) {
    rows.data = static_cast<char*>(rows.data) + head * rows.head * 2;  // 16-bit elements
    return rows;
}
inline Rows from(Rows rows, i64 head, i64 token) {
    rows = from_head(rows, head);
    rows.data = static_cast<char*>(rows.data) + token * rows.token * 2;
    return rows;
}
inline Scalars from(Scalars scalars, i64 head, i64 token) {
    scalars.values.data = static_cast<const char*>(scalars.values.data) +
                          (head * scalars.head + token * scalars.token) * bytes_of(scalars.values.type);
    return scalars;
}
inline Tagged from(Tagged values, i64 index) {
    if (values.data != nullptr) values.data = static_cast<const char*>(values.data) + index * bytes_of(values.type);
    return values;
}
inline RecurrentStates from_head(RecurrentStates states, i64 head) {
    if (states.data != nullptr) states.data = static_cast<float*>(states.data) + head * states.head;
    return states;
}

// S after every `interval` tokens, as forward has left it; an interval of 0: nowhere.
struct StateCheckpoints {
    RecurrentStates states{};  // slot: of a sequence; step: from one to the next
    i64 interval = 0;

    RecurrentStates at(i64 index) const {
        RecurrentStates state = states;
        state.data = static_cast<float*>(states.data) + index * states.step;
        return state;
    }
    // The tokens of a part between them.
    ChainSegments segments(const BackwardPart& part) const {
        const int count = interval > 0 ? static_cast<int>(ceil_div(part.tokens, interval)) : 1;
        if (count <= 1) return {};
        const RecurrentStates first = from_head(at(part.token / interval), part.head);
        return {.count = count,
                .length = static_cast<int>(interval / kChunk),
                .taken = count,
                .after = static_cast<float*>(first.data),
                .sequence_stride = first.slot,
                .head_stride = first.head,
                .segment_stride = first.step};
    }
};

// Where gradients of gates and betas go if every channel of the key has a gate: contiguous (sequence, token, head, channel) and
// (sequence, token, head), or absent.
struct ChannelGateGradients {
    Tagged gate, beta;
    float* sums = nullptr;  // (2, chunk, head, dk): of A_log's and dt_bias's gradients over the chunk's tokens; or nullptr
};

// On Hopper also with a gate for every channel of the key.
struct BackwardPasses {
    GdnCall call;  // a head's gates are logarithms of decays, and its betas are not logits
    DType io;
    Rows output_gradient, query_gradient, key_gradient, value_gradient;
    RecurrentStates initial, final_gradient, initial_gradient;
    StateCheckpoints checkpoints;
    float *beta_gradient, *gate_gradient;  // (sequence, token, head); where each head has a gate
    ChannelGateGradients channel_gradients;
    WantedGradients wanted;
    bool deterministic;

    bool packed() const { return call.cu_seqlens.data != nullptr; }
    static bool by_channel(const GdnCall& call) { return call.channels.form != ChannelGate::none; }
    bool by_channel() const { return by_channel(call); }
    i64 chunks_of(i64 tokens) const { return chunk_indices(packed(), call.sequences, static_cast<int>(tokens)); }

    // The passes' calls for a part. Parts that are later in time are run first, and leave the gradient of the state before them
    // where that of the initial state goes.
    struct Calls {
        GdnCall backward, forward;  // the chains'
        BackwardGradientsArgs gradients;
        KdaGradientsCall channel_gradients;
        ChainSegments checkpointed;  // how the chain forward in time is split
    };
    Calls calls(const BackwardPart& part, const BackwardHandover& handover) const {
        const i64 key_head = part.head / call.heads_per_key;
        const auto part_of_keys = [&](const Rows& rows) { return from(rows, key_head, part.token); };
        const auto part_of_values = [&](const auto& x) { return from(x, part.head, part.token); };
        GdnCall each = call;
        each.heads = static_cast<int>(part.heads);
        each.tokens = static_cast<int>(part.tokens);
        each.query = part_of_keys(call.query);
        each.key = part_of_keys(call.key);
        each.gate = part_of_values(call.gate);
        each.beta = part_of_values(call.beta);
        each.A_log = from(call.A_log, part.head);
        each.dt_bias = from(call.dt_bias, part.head * call.channels.bias_head);

        GdnCall backward = each, forward = each;
        backward.value = part_of_values(output_gradient);
        backward.output = part_of_values(value_gradient);
        const bool is_last = part.token + part.tokens == call.tokens;
        backward.initial = from_head(is_last ? final_gradient : initial_gradient, part.head);
        backward.last = from_head(initial_gradient, part.head);
        forward.value = part_of_values(call.value);
        forward.initial =
            from_head(part.token > 0 ? checkpoints.at(part.token / checkpoints.interval - 1) : initial, part.head);
        forward.last = {};
        return {backward, forward, by_channel() ? BackwardGradientsArgs{} : gradients_of(part, each, handover),
                by_channel() ? channel_gradients_of(part, each, handover) : KdaGradientsCall{}, checkpoints.segments(part)};
    }
    // Whether Hopper's kernels take rows of these sizes. GDN_PREFILL is their variable too, as of all of chunked_forward.
    static bool takes(const GdnCall& call, const Target& target) {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        if (!by_channel(call)) return BackwardGradients::takes(call.dk, call.dv, device);
        return KdaGradients::takes(call.dk, call.dv, call.heads_per_key, device) &&
               wanted_prefill() == WantedPrefill::automatic;
    }
    // Whether they take all of the call, and so each part of it. Those of channels take gates as takes_kda_gates says.
    bool hopper(const Target& target) const {
        const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
        const Calls all = calls({0, call.heads, 0, call.tokens}, {.chunks = chunks_of(call.tokens)});
        return takes(call, target) && BackwardChain::takes(all.backward) && BackwardChain::takes(all.forward) &&
               (by_channel() ? KdaGradients::takes(all.channel_gradients, device)
                             : BackwardGradients::takes(all.gradients, device));
    }
    // Compiles, beside what the forward needs, what run() will launch for the call. Tensors that Hopper's kernels do not take
    // are met in run().
    static void prefetch(const GdnCall& call, DType io, const Target& target) {
        if (takes(call, target)) {
            if (by_channel(call)) {
                gdn_cuda::prefetch<KdaGradients>({.io = io}, target);
                gdn_cuda::prefetch<KdaPrepare>(KdaPrepare::config_of(io, call, true), target);
            } else {
                gdn_cuda::prefetch<BackwardGradients>(BackwardGradients::config_of(call.dk, io), target);
                gdn_cuda::prefetch<BackwardPrepare>(backward_prepare_config(call.dk, io), target);
            }
            for (const Direction direction : {Direction::backward, Direction::forward})
                gdn_cuda::prefetch<BackwardChain>(BackwardChain::config_of(call.dk, direction, io, by_channel(call)), target);
            gdn_cuda::prefetch<BackwardLinks>(BackwardLinks::kConfigurations.front(), target);
        } else {
            gdn_cuda::prefetch<BackwardMmaGradients>(BackwardMmaGradients::config_of(call.dk, io), target);
            for (const Direction direction : {Direction::backward, Direction::forward})
                gdn_cuda::prefetch<BackwardMmaStates>(BackwardMmaStates::config_of(direction, call, io), target);
        }
    }

    // `like`: a tensor on the device.
    void run_on_hopper(const Calls& part, const BackwardHandover& handover, const Tensor& like, const Target& target) const {
        const bool known = part.checkpointed.count > 1;
        const int split = wanted != WantedGradients::all || known ? 1 : 2;  // chains whose states have to be linked
        // Chosen from all heads, so that groups of them give the same bits as all at once. With `deterministic`, a sequence has
        // the same bits in every batch.
        GdnCall whole = call;
        whole.tokens = part.backward.tokens;
        const int segments =
            deterministic ? 1 : BackwardChain::segments(whole, split, jit::device_traits(target.ordinal).multiprocessors);
        const i64 words = BackwardChain::link_words(part.backward, segments);
        const Tensor memory = new_tensor(like, {split * words}, ScalarType::Float);
        auto* const first = static_cast<float*>(memory_of(memory));
        BackwardLinksArgs links{.heads = part.backward.heads, .dv = call.dv, .dk = call.dk};
        for (int i = 0; i < split; ++i) links.chains[i] = BackwardChain::links(part.backward, segments, first + i * words);
        const ChainSegments &backward = links.chains[0], &forward = known ? part.checkpointed : links.chains[1];
        const auto run_backward = [&](const ChainSegments& chain) {
            BackwardChain::run(Direction::backward, chain, part.backward, handover, io, target);
        };
        const auto run_forward = [&](const ChainSegments& chain) {
            if (wanted == WantedGradients::all)
                BackwardChain::run(Direction::forward, chain, part.forward, handover, io, target);
        };
        if (by_channel())
            KdaPrepare::run(part.backward, handover, io, target);
        else
            BackwardPrepare::run(part.backward, handover, io, target);
        run_backward(backward);
        if (segments > 1) {
            if (!known) run_forward(forward);
            BackwardLinks::run(part.backward, links, split, target);
            run_backward(backward.without_first());
        }
        run_forward(known || segments == 1 ? forward : forward.without_first());
        if (wanted != WantedGradients::all) return;
        if (by_channel())
            KdaGradients::run(part.channel_gradients, io, target);
        else
            BackwardGradients::run(part.gradients, io, target);
    }
    // The gradient of the state alone, from the tails of all tokens: those where sequences begin.
    void run_tails(const Calls& part, const BackwardHandover& handover, const Tensor& like, const Target& target) const {
        const SummaryPasses passes{
            .call = part.backward, .io = io, .packed_tokens = packed() ? call.tokens : 0, .backward = true};
        const FoundSegments found = passes.find(like, target);
        BackwardPrepare::run(part.backward, handover, io, target, found.args.tails);
        BackwardChain::run(found.with(BackwardChain::row_tiles(call.dv), false), found.listed, part.backward, handover, io,
                           target);
        passes.fold(found, false, target);
    }
    void run_anywhere(const Calls& part, const BackwardHandover& handover, const Target& target) const {
        const auto run_chain = [&](Direction direction, const GdnCall& chain) {
            BackwardMmaStates::run(direction, {.call = chain, .state = DType::f32, .to = handover}, io, target);
        };
        run_chain(Direction::backward, part.backward);
        if (wanted != WantedGradients::all) return;
        run_chain(Direction::forward, part.forward);
        BackwardMmaGradients::run(part.gradients, io, target);
    }

    i64 default_workspace(const Target& target) const {
        constexpr i64 kGiB = i64{1} << 30;
        return by_channel() && jit::device_traits(target.ordinal).memory_bytes >= 16 * 4 * kGiB ? 4 * kGiB : kGiB;
    }
    // Everything, part after part within `given` bytes, or default_workspace: all heads of as many tokens as fit, from one
    // checkpoint to another; as many key heads as fit where those are too many or there are no checkpoints.
    void run(const Checks& check, const Sequences& sequences, std::optional<i64> given, const Tensor& like,
             const Target& target) const {
        const bool on_hopper = hopper(target);
        const auto bytes_of_head = [&](i64 tokens, WantedGradients kind) {
            return BackwardWorkspace(sequences, chunks_of(tokens), on_hopper, by_channel()).bytes_of_head(kind);
        };
        const i64 most = default_workspace(target);
        const bool in_windows = checkpoints.interval > 0,
                   by_tails = wanted == WantedGradients::state && on_hopper && !by_channel() &&
                              (!in_windows || bytes_of_head(call.tokens, wanted) * call.heads_per_key <= given.value_or(most));
        const auto head_bytes = [&](i64 tokens) {
            return bytes_of_head(tokens,
                                 wanted == WantedGradients::state && !by_tails ? WantedGradients::value_and_state : wanted);
        };
        const i64 shortest = in_windows && !by_tails ? std::min<i64>(checkpoints.interval, call.tokens) : call.tokens;
        const i64 least = head_bytes(shortest) * call.heads_per_key, workspace = given.value_or(std::max(most, least));
        GDN_REQUIRE(check, least <= workspace, "workspace",
                    fmt::format("at least {} bytes, what the backward of one key head needs", least),
                    fmt::format("{}", workspace));
        if (call.heads == 0 || call.sequences == 0) return;
        const i64 all_key_heads = call.heads / call.heads_per_key, fit = least > 0 ? workspace / least : all_key_heads,
                  key_heads = std::min(all_key_heads, fit), heads = key_heads * call.heads_per_key;
        const i64 steps = shortest > 0 ? ceil_div(i64{call.tokens}, shortest) : 1,
                  at_once = std::clamp<i64>(std::min<i64>(fit / all_key_heads, kMaxGridYZ / call.sequences), 1, steps),
                  windows = ceil_div(steps, at_once), window = ceil_div(steps, windows) * shortest;
        constexpr i64 kAligned = alignof(PreparedChunk);
        const i64 bytes = heads * head_bytes(std::min<i64>(window, call.tokens));
        const Tensor memory = new_tensor(like, {ceil_div(bytes, kAligned) * kAligned}, ScalarType::Byte);
        for (i64 head = 0; head < call.heads; head += heads)
            for (i64 later = windows; later-- > 0;) {
                const BackwardPart part{.head = head,
                                        .heads = std::min<i64>(heads, call.heads - head),
                                        .token = later * window,
                                        .tokens = std::min<i64>(window, call.tokens - later * window)};
                const BackwardWorkspace space(sequences, chunks_of(part.tokens), on_hopper, by_channel());
                const BackwardHandover handover = space.of(static_cast<char*>(memory_of(memory)), part.heads);
                if (by_tails)
                    run_tails(calls(part, handover), handover, like, target);
                else if (on_hopper)
                    run_on_hopper(calls(part, handover), handover, like, target);
                else
                    run_anywhere(calls(part, handover), handover, target);
            }
    }

  private:
    BackwardGradientsArgs gradients_of(const BackwardPart& part, const GdnCall& each, const BackwardHandover& handover) const {
        const i64 key_head = part.head / call.heads_per_key, first_scalar = part.head + part.token * call.heads;
        return {.query = each.query,
                .key = each.key,
                .output_gradient = from(output_gradient, part.head, part.token),
                .value_gradient = from(value_gradient, part.head, part.token),
                .query_gradient = from(query_gradient, key_head, part.token),
                .key_gradient = from(key_gradient, key_head, part.token),
                .beta_gradient = beta_gradient + first_scalar,
                .gate_gradient = gate_gradient + first_scalar,
                .scalars_sequence = packed() ? 0 : i64{call.tokens} * call.heads,
                .scalars_token = call.heads,
                .from = handover,
                .cu_seqlens = call.cu_seqlens,
                .sequences = call.sequences,
                .tokens = each.tokens,
                .heads = each.heads,
                .heads_per_key = call.heads_per_key,
                .dk = call.dk,
                .dv = call.dv,
                .scale = call.scale,
                .qk_norm = call.qk_norm};
    }
    KdaGradientsCall channel_gradients_of(const BackwardPart& part, const GdnCall& each,
                                          const BackwardHandover& handover) const {
        const auto part_of_rows = [&](const Rows& rows) { return from(rows, part.head, part.token); };
        const i64 first_scalar = part.head + part.token * call.heads, row = i64{call.heads} * call.dk,
                  first_row = part.token / kChunk * call.sequences;  // parts of a call are whole chunks of padded sequences
        float* const sums = channel_gradients.sums;
        return {.call = each,
                .output_gradient = part_of_rows(output_gradient),
                .value_gradient = part_of_rows(value_gradient),
                .query_gradient = part_of_rows(query_gradient),
                .key_gradient = part_of_rows(key_gradient),
                .gate_gradient = from(channel_gradients.gate, first_scalar * call.dk),
                .beta_gradient = from(channel_gradients.beta, first_scalar),
                .scalars_sequence = packed() ? 0 : i64{call.tokens} * call.heads,
                .scalars_token = call.heads,
                .sums = sums != nullptr ? sums + first_row * row + part.head * call.dk : nullptr,
                .sums_which = chunks_of(call.tokens) * row,
                .sums_row = row,
                .from = handover};
    }
};

}  // namespace gdn_cuda::gdn
