#include "chunk_inputs.hpp"

#include <torch/csrc/stable/ops.h>

#include "chunk_gates.hpp"
#include "move_states.hpp"

namespace gdn_cuda::gdn {

// Whether gates are logarithms of decays, and betas themselves.
bool has_chunk_gates(const GdnCall& args) {
    return args.gate.values.data != nullptr && args.beta.values.data != nullptr && args.forms.gate == GateForms::log_decay &&
           !args.forms.beta_is_logit;
}

bool has_paired_channel_gates(const Prepared& prepared) {
    const Scalars& gate = prepared.args.gate;
    const DType type = gate.values.type;
    const auto in_pairs = [](int64_t stride) { return stride % 2 == 0; };
    return (type == DType::f32 || type == prepared.sequences.io) && prepared.args.channels.channel == 1 &&
           in_pairs(gate.batch) && in_pairs(gate.token) && in_pairs(gate.head) &&
           reinterpret_cast<uintptr_t>(gate.values.data) % (2 * bytes_of(type)) == 0;
}

bool moves_states(const Prepared& prepared) {
    const GdnCall& args = prepared.args;
    return !prepared.plain_states || args.initial.scales != nullptr || args.has_initial != nullptr ||
           args.last_slots.data != nullptr;
}

View ChunkInputs::copied(const Tensor& tensor) {
    kept_.push_back(torch::stable::contiguous(tensor));
    return prepared_.sequences.without_batch(View(kept_.back()));
}

void ChunkInputs::close_gaps(const Tensor& query, const Tensor& key, const Tensor& value) {
    Sequences& sequences = prepared_.sequences;
    if (sequences.io == DType::f32 || sequences.has_more_queries() || sequences.plain()) return;
    sequences.query = copied(query);
    sequences.key = copied(key);
    sequences.value = copied(value);
    prepared_.args.query = rows_of(sequences.query);
    prepared_.args.key = rows_of(sequences.key);
    prepared_.args.value = rows_of(sequences.value);
    prepared_.aligned = sequences.query.aligned16() && sequences.key.aligned16() && prepared_.aligned_states;
}

void ChunkInputs::fit_channel_gates(const OptionalTensor& gate) {
    const Sequences& sequences = prepared_.sequences;
    GdnCall& args = prepared_.args;
    if (args.channels.form == ChannelGate::none || !sequences.plain() || has_paired_channel_gates(prepared_)) return;
    const DType type = args.gate.values.type;
    const View view = copied(type == DType::f32 || type == sequences.io ? *gate : torch::stable::to(*gate, ScalarType::Float));
    args.gate = channel_scalars(view);
    args.channels.channel = 1;
}

void ChunkInputs::convert_gates() {
    const Sequences& sequences = prepared_.sequences;
    GdnCall& args = prepared_.args;
    const int64_t padded = sequences.packed() ? 1 : sequences.count, heads = args.heads;
    kept_.push_back(new_tensor(like_, {2, padded, sequences.tokens, heads}, ScalarType::Float));
    float* memory = static_cast<float*>(memory_of(kept_.back()));
    const ChunkGatesArgs given{.gate = args.gate,
                               .beta = args.beta,
                               .forms = args.forms,
                               .A_log = args.A_log,
                               .dt_bias = args.dt_bias,
                               .sequences = padded,
                               .tokens = sequences.tokens,
                               .heads = args.heads,
                               .log_decay = memory,
                               .beta_out = memory + padded * sequences.tokens * heads};
    ChunkGates::run(given, target_);
    const int64_t sequence = sequences.packed() ? 0 : sequences.tokens * heads;
    args.gate = {{given.log_decay, DType::f32}, sequence, heads, 1};
    args.beta = {{given.beta_out, DType::f32}, sequence, heads, 1};
    args.forms = {};
}

void ChunkInputs::gather_states() {
    const Sequences& sequences = prepared_.sequences;
    GdnCall& args = prepared_.args;
    call_ = args;
    kept_.push_back(new_states(like_, {sequences.count}, sequences, DType::f32));
    const RecurrentStates dense = contiguous_states(memory_of(kept_.back()), sequences, DType::f32);
    kept_.push_back(new_tensor(like_, {sequences.count}, ScalarType::Long));
    auto* slots = static_cast<i64*>(memory_of(kept_.back()));
    MoveStates::run(StatesMove::gather, {.call = call_, .to = dense, .rows = sequences.count, .dense_slots = slots}, target_);
    args.initial = dense;
    args.last = call_.last.data == nullptr ? RecurrentStates{} : dense;
    args.has_initial = nullptr;
    args.last_slots = {};
    args.slots = {slots, DType::i64};
    args.slots_sequence = 1;
    args.slots_token = 0;
    args.slot_steps = 1;
    args.slot_count = args.sequences;
    args.null_slot = -1;
    prepared_.state_type = DType::f32;
    prepared_.plain_states = true;
    prepared_.aligned = sequences.query.aligned16() && sequences.key.aligned16();
}

void ChunkInputs::scatter_states() const {
    if (call_.last.data == nullptr) return;
    const RecurrentStates dense = prepared_.args.initial;
    MoveStates::run(StatesMove::scatter, {.call = call_, .from = dense, .rows = call_.sequences}, target_);
}

}  // namespace gdn_cuda::gdn
