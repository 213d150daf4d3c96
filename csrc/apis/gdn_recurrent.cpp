// fused_decode, recurrent_forward and chunked_forward: what they check, and how each describes itself to gdn/recurrent.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>

#include "../jit_kernels/impls/gdn/decode.hpp"
#include "../jit_kernels/impls/gdn/prefill.hpp"
#include "../jit_kernels/impls/gdn/prefill_mma.hpp"
#include "../jit_kernels/impls/gdn/recurrent.hpp"
#include "../jit_kernels/impls/gdn/verify.hpp"
#include "gdn.hpp"
#include "gdn_checks.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

using torch::headeronly::ScalarType;
constexpr int64_t kPrefill = 0, kSpecVerify = 2;

// What all three have in common.
struct Prepared {
    Sequences sequences;
    DType state_type = DType::f32;
    bool aligned = true;
    RecurrentArgs args{};
};

Prepared prepare(const Checks& check, const Sequences& sequences, const Tensor& out, std::optional<double> scale,
                 bool qk_norm) {
    Prepared prepared{.sequences = sequences};
    RecurrentArgs& args = prepared.args;
    const View output(out);
    GDN_REQUIRE(
        check,
        output.rank == sequences.value.rank && std::equal(output.sizes, output.sizes + output.rank, sequences.value.sizes),
        "out", fmt::format("the shape of value {}", shape_text(sequences.value)), shape_text(output));
    check.dtype("out", output, {sequences.io});
    check.device("out", output, sequences.query, "query");
    check.last_contiguous("out", output);
    check.distinct("out", output);
    GDN_REQUIRE(check, !scale || std::isfinite(*scale), "scale", "a finite number", fmt::format("{}", scale.value_or(0)));

    args.query = rows_of(sequences.query);
    args.key = rows_of(sequences.key);
    args.value = rows_of(sequences.value);
    args.output = rows_of(output);
    args.sequences = static_cast<int>(sequences.count);
    args.tokens = static_cast<int>(sequences.tokens);
    args.heads = static_cast<int>(sequences.value_heads);
    args.heads_per_key = static_cast<int>(sequences.value_heads / sequences.key_heads);
    args.dk = static_cast<int>(sequences.dk);
    args.dv = static_cast<int>(sequences.dv);
    args.scale = static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(sequences.dk))));
    args.qk_norm = qk_norm;
    args.cu_seqlens = tagged(sequences.cu_seqlens);
    args.null_slot = -1;
    args.slot_steps = 1;
    args.slot_count = std::numeric_limits<int>::max();
    args.step_interval = 1;
    args.step_limit = std::numeric_limits<int>::max();
    prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    return prepared;
}

// States (slots, Hv, dv, dk) or (slots, steps, Hv, dv, dk): each state contiguous.
RecurrentStates states_of(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank) {
    const Sequences& sequences = prepared.sequences;
    check.rank(argument, states, rank, rank == 4 ? "(slots, Hv, dv, dk)" : "(slots, steps, Hv, dv, dk)");
    const int64_t expected[] = {sequences.value_heads, sequences.dv, sequences.dk};
    GDN_REQUIRE(check, std::equal(expected, expected + 3, states.sizes + rank - 3), argument,
                fmt::format("states of (Hv, dv, dk) = {}", shape_text({expected[0], expected[1], expected[2]})),
                shape_text(states));
    check.device(argument, states, sequences.query, "query");
    GDN_REQUIRE(check, states.contiguous_tail(3), argument, "each state contiguous",
                fmt::format("strides {}", stride_text(states)));
    prepared.aligned = prepared.aligned && states.aligned16();
    return {states.data, states.stride(0), rank == 5 ? states.stride(1) : 0};
}

void indices_of(const Checks& check, const char* argument, const View& indices, const Sequences& sequences) {
    check.dtype(argument, indices, {DType::i32, DType::i64});
    check.device(argument, indices, sequences.query, "query");
}

void vector_of_sequences(const Checks& check, const char* argument, const View& numbers, const Sequences& sequences) {
    indices_of(check, argument, numbers, sequences);
    check.shape(argument, numbers, {sequences.count}, "(sequences,)");
    check.last_contiguous(argument, numbers);
}

void set_slots(const Checks& check, Prepared& prepared, const View& slots, int64_t slot_count) {
    RecurrentArgs& args = prepared.args;
    args.slots = tagged(slots);
    args.slots_sequence = slots.stride(0);
    args.slots_token = slots.rank == 2 ? slots.stride(1) : 0;
    args.slot_steps = slots.rank == 2 ? static_cast<int>(slots.size(1)) : 1;
    GDN_REQUIRE(check, slot_count <= std::numeric_limits<int>::max(), "state_pool", "fewer than 2^31 slots",
                fmt::format("{}", slot_count));
    args.slot_count = static_cast<int>(slot_count);
}

// What gdn/decode and gdn/verify ask of shapes.
bool is_regular(const Prepared& prepared) {
    const Sequences& sequences = prepared.sequences;
    return !sequences.packed() && sequences.count <= 65535 && prepared.aligned && has_exact_kernel(prepared.args.dk);
}

// One token a sequence, from one slot to one slot.
bool is_decode(const Prepared& prepared) {
    const RecurrentArgs& args = prepared.args;
    return is_regular(prepared) && args.tokens == 1 && args.steps.data == nullptr && args.accepted.data == nullptr &&
           args.last.data != nullptr;
}

DecodeArgs decode_args(const RecurrentArgs& args) {
    const auto heads = [](const Rows& rows) { return DecodeArgs::Heads{rows.data, rows.batch, rows.head}; };
    const auto gates = [](const Scalars& scalars) { return DecodeArgs::Gates{scalars.values, scalars.batch, scalars.head}; };
    return {.query = heads(args.query),
            .key = heads(args.key),
            .value = heads(args.value),
            .output = heads(args.output),
            .beta = gates(args.beta),
            .gate = gates(args.gate),
            .A_log = args.A_log,
            .dt_bias = args.dt_bias,
            .heads_per_key = args.heads_per_key,
            .dv = args.dv,
            .steps = 1,
            .scale = args.scale,
            .qk_norm = args.qk_norm,
            .slots = args.slots,
            .slots_sequence = args.slots_sequence,
            .slot_count = args.slot_count,
            .null_slot = args.null_slot,
            .state_in = args.initial.data,
            .state_out = args.last.data,
            .state_in_slot = args.initial.slot,
            .state_out_slot = args.last.slot};
}

void run(const Prepared& prepared, const char* function) {
    const Sequences& sequences = prepared.sequences;
    const RecurrentArgs& args = prepared.args;
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of(function, sequences.query);
    if (is_decode(prepared)) {
        const DecodeProblem problem{.sequences = sequences.count,
                                    .heads = args.heads,
                                    .dk = args.dk,
                                    .dv = args.dv,
                                    .io = sequences.io,
                                    .state = prepared.state_type,
                                    .fused_gates = args.A_log.data != nullptr};
        return Decode::run(problem, decode_args(args), target);
    }
    const VerifyProblem verify{.sequences = sequences.count,
                               .tokens = sequences.tokens,
                               .heads = args.heads,
                               .dk = args.dk,
                               .dv = args.dv,
                               .io = sequences.io,
                               .state = prepared.state_type};
    if (is_regular(prepared) && args.tokens > 0 && verify_applies(verify, jit::device_traits(target.ordinal)))
        return Verify::run(verify, args, target);
    const RecurrentProblem problem{.sequences = sequences.count,
                                   .tokens = sequences.mean_tokens(),
                                   .heads = args.heads,
                                   .dk = args.dk,
                                   .dv = args.dv,
                                   .io = sequences.io,
                                   .state = prepared.state_type,
                                   .aligned = prepared.aligned};
    Recurrent::run(problem, args, target);
}

// Whole chunks on the tensor cores where the device and the tensors allow; else token by token. The choice looks at nothing
// that what a sequence is packed with could change. `out`: any tensor of the call.
void run_chunked(const Prepared& prepared, const Tensor& out) {
    const Sequences& sequences = prepared.sequences;
    const RecurrentArgs& args = prepared.args;
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of("chunked_forward", sequences.query);
    const auto tiled = [&](const Rows& rows, int64_t heads, int64_t d) {
        return jit::TiledTensor{rows, sequences.packed() ? 1 : sequences.count, sequences.tokens, heads, d};
    };
    PrefillTensors tensors{tiled(args.query, sequences.key_heads, sequences.dk),
                           tiled(args.key, sequences.key_heads, sequences.dk),
                           tiled(args.value, sequences.value_heads, sequences.dv),
                           tiled(args.output, sequences.value_heads, sequences.dv), nullptr};
    const bool tiles = jit::can_tile(tensors.query) && jit::can_tile(tensors.key) && jit::can_tile(tensors.value) &&
                       jit::can_tile(tensors.output);
    const bool rows_fit = tiles && prepared.aligned && sequences.dk % 8 == 0 && sequences.dv % 8 == 0 && sequences.tokens > 0 &&
                          sequences.count <= 65535;
    const PrefillProblem problem{.sequences = sequences.count,
                                 .tokens = sequences.mean_tokens(),
                                 .heads = args.heads,
                                 .dk = args.dk,
                                 .dv = args.dv,
                                 .io = sequences.io,
                                 .state = prepared.state_type};
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    std::optional<Tensor> readers;
    switch (prefill_kernel(rows_fit, args.dk, device.capability, jit::env().prefill)) {
        case PrefillKernel::wgmma:
            if (args.initial.data == args.last.data && Prefill::readers(problem, target) > 0) {
                readers = torch::stable::new_empty(out, {Prefill::readers(problem, target)}, ScalarType::Int);
                torch::stable::zero_(*readers);
                tensors.readers = static_cast<unsigned*>(readers->data_ptr());
            }
            return Prefill::run(problem, args, tensors, target);
        case PrefillKernel::mma:
            return PrefillMma::run(problem, args, target);
        case PrefillKernel::recurrent:
            return run(prepared, "chunked_forward");
    }
}

Tensor new_states(const Tensor& like, std::initializer_list<int64_t> leading, const Sequences& sequences, DType type) {
    std::vector<int64_t> shape(leading);
    shape.insert(shape.end(), {sequences.value_heads, sequences.dv, sequences.dk});
    return torch::stable::new_empty(like, shape, type == DType::bf16 ? ScalarType::BFloat16 : ScalarType::Float);
}

}  // namespace

// ---- fused_decode
// ----------------------------------------------------------------------------------------------------------------

namespace {
Prepared prepare_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                        const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool,
                        const OptionalTensor& state_indices, const OptionalTensor& cu_seqlens,
                        const OptionalTensor& num_accepted_tokens, std::optional<int64_t> null_slot,
                        const OptionalTensor& step_states, const OptionalTensor& step_slots, std::optional<double> scale,
                        bool use_qk_l2norm, const Tensor& out) {
    const Checks check{"fused_decode"};
    const Sequences sequences = check_sequences(check, query, key, value, view_of(cu_seqlens));
    Prepared prepared = prepare(check, sequences, out, scale, use_qk_l2norm);
    RecurrentArgs& args = prepared.args;

    args.gate = check_scalars(check, "a", View(a), sequences, {DType::bf16, DType::f16, DType::f32});
    args.beta = check_scalars(check, "b", View(b), sequences, {DType::bf16, DType::f16, DType::f32});
    args.A_log = check_per_head(check, "A_log", View(A_log), sequences);
    args.dt_bias = check_per_head(check, "dt_bias", View(dt_bias), sequences);

    const View pool(state_pool), slots = view_of(state_indices), accepted = view_of(num_accepted_tokens);
    const View steps = view_of(step_states), rows = view_of(step_slots);
    prepared.state_type = check.dtype("state_pool", pool, {DType::f32, DType::bf16});
    args.initial = states_of(check, prepared, "state_pool", pool, 4);
    check.distinct("state_pool", pool);
    if (slots.defined()) {
        indices_of(check, "state_indices", slots, sequences);
        GDN_REQUIRE(check, (slots.rank == 1 || slots.rank == 2) && slots.size(0) == sequences.count, "state_indices",
                    fmt::format("({0},) or ({0}, T), a row a sequence", sequences.count), shape_text(slots));
        const bool wide_enough =
            slots.rank == 1 || (slots.size(1) >= 1 && (sequences.packed() || slots.size(1) >= sequences.tokens));
        GDN_REQUIRE(check, wide_enough, "state_indices", fmt::format("a slot for each of {} tokens", sequences.tokens),
                    shape_text(slots));
        set_slots(check, prepared, slots, pool.size(0));
    } else {
        GDN_REQUIRE(check, pool.size(0) >= sequences.count, "state_pool",
                    fmt::format("a slot for each of {} sequences, as state_indices is None", sequences.count),
                    shape_text(pool));
    }
    if (accepted.defined()) {
        GDN_REQUIRE(check, slots.defined() && slots.rank == 2, "num_accepted_tokens", "rank-2 state_indices to choose from",
                    slots.defined() ? "state_indices " + shape_text(slots) : "state_indices None");
        vector_of_sequences(check, "num_accepted_tokens", accepted, sequences);
        args.accepted = tagged(accepted);
    }
    if (null_slot) {
        GDN_REQUIRE(check, *null_slot >= 0, "null_slot", "a slot number, or None", fmt::format("{}", *null_slot));
        args.null_slot = *null_slot;
    }

    GDN_REQUIRE(check, steps.defined() == rows.defined(), steps.defined() ? "step_slots" : "step_states",
                "both step_states and step_slots", "one of them");
    if (steps.defined()) {
        check.dtype("step_states", steps, {prepared.state_type});
        args.steps = states_of(check, prepared, "step_states", steps, 5);
        check.distinct("step_states", steps);
        GDN_REQUIRE(check, sequences.packed() || steps.size(1) >= sequences.tokens, "step_states",
                    fmt::format("room for {} tokens a row", sequences.tokens), shape_text(steps));
        vector_of_sequences(check, "step_slots", rows, sequences);
        args.step_index = RecurrentArgs::by_step_slot;
        args.step_slots = tagged(rows);
        args.step_slot_count = static_cast<int>(steps.size(0));
        args.step_limit = static_cast<int>(steps.size(1));
    } else if (slots.defined() && slots.rank == 2) {
        args.steps = args.initial;
        args.step_index = RecurrentArgs::by_slot_of_token;
        args.step_limit = args.slot_steps;
    } else {
        args.last = args.initial;
    }
    return prepared;
}
}  // namespace

void fused_decode(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& a, const Tensor& b,
                  const Tensor& A_log, const Tensor& dt_bias, const Tensor& state_pool, const OptionalTensor& state_indices,
                  const OptionalTensor& cu_seqlens, const OptionalTensor& num_accepted_tokens, std::optional<int64_t> null_slot,
                  const OptionalTensor& step_states, const OptionalTensor& step_slots, std::optional<double> scale,
                  bool use_qk_l2norm, const Tensor& out) {
    run(prepare_decode(query, key, value, a, b, A_log, dt_bias, state_pool, state_indices, cu_seqlens, num_accepted_tokens,
                       null_slot, step_states, step_slots, scale, use_qk_l2norm, out),
        "fused_decode");
}

// ---- recurrent_forward
// -----------------------------------------------------------------------------------------------------------

namespace {
Prepared prepare_recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& state,
                           const Tensor& beta, const Tensor& gate, const OptionalTensor& cu_seqlens,
                           const OptionalTensor& num_accepted_tokens, int64_t inference_mode, bool is_qk_norm,
                           std::optional<double> scale, const Tensor& out) {
    const Checks check{"recurrent_forward"};
    const Sequences sequences = check_sequences(check, query, key, value, view_of(cu_seqlens));
    Prepared prepared = prepare(check, sequences, out, scale, is_qk_norm);
    RecurrentArgs& args = prepared.args;
    GDN_REQUIRE(check, inference_mode >= kPrefill && inference_mode <= kSpecVerify, "inference_mode",
                "InferenceMode PREFILL 0, DECODE 1 or SPEC_VERIFY 2", fmt::format("{}", inference_mode));
    check_gates(check, beta, gate, sequences, args.beta, args.gate);

    const View initial = view_of(state), accepted = view_of(num_accepted_tokens);
    const bool verify = inference_mode == kSpecVerify;
    GDN_REQUIRE(check, verify || !accepted.defined(), "num_accepted_tokens", "None, unless inference_mode is SPEC_VERIFY",
                "a tensor");
    if (initial.defined()) {
        prepared.state_type = check.dtype("state", initial, {DType::f32, DType::bf16});
        const bool steps = verify && initial.rank == 5;
        args.initial = states_of(check, prepared, "state", initial, steps ? 5 : 4);
        GDN_REQUIRE(check, initial.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(initial));
        GDN_REQUIRE(check, !steps || initial.size(1) >= 1, "state", "at least one step", shape_text(initial));
        args.slot_steps = steps ? static_cast<int>(initial.size(1)) : 1;
    }
    if (accepted.defined()) {
        GDN_REQUIRE(check, initial.defined(), "num_accepted_tokens", "a state to choose from", "state None");
        vector_of_sequences(check, "num_accepted_tokens", accepted, sequences);
        args.accepted = tagged(accepted);
    }
    return prepared;
}
}  // namespace

Tensor recurrent_forward(const Tensor& query, const Tensor& key, const Tensor& value, const OptionalTensor& state,
                         const Tensor& beta, const Tensor& gate, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& num_accepted_tokens, int64_t inference_mode, bool is_qk_norm,
                         std::optional<double> scale, const Tensor& out) {
    Prepared prepared = prepare_recurrent(query, key, value, state, beta, gate, cu_seqlens, num_accepted_tokens, inference_mode,
                                          is_qk_norm, scale, out);
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    if (inference_mode == kSpecVerify) {
        const Tensor states = sequences.packed()
                                  ? new_states(out, {sequences.tokens}, sequences, prepared.state_type)
                                  : new_states(out, {sequences.count, sequences.tokens}, sequences, prepared.state_type);
        args.step_index = sequences.packed() ? RecurrentArgs::packed : RecurrentArgs::by_sequence;
        args.steps = {states.data_ptr(), sequences.packed() ? 0 : sequences.tokens * sequences.state_numel(),
                      sequences.state_numel()};
        run(prepared, "recurrent_forward");
        return states;
    }
    const Tensor states = new_states(out, {sequences.count}, sequences, prepared.state_type);
    args.last = {states.data_ptr(), sequences.state_numel(), 0};
    run(prepared, "recurrent_forward");
    return states;
}

// ---- chunked_forward
// -------------------------------------------------------------------------------------------------------------

namespace {
Prepared prepare_chunked(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                         const OptionalTensor& state, const OptionalTensor& state_indices, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                         bool use_qk_l2norm, int64_t checkpoint_every, const Tensor& out) {
    const Checks check{"chunked_forward"};
    const Sequences sequences = check_sequences(check, query, key, value, view_of(cu_seqlens));
    Prepared prepared = prepare(check, sequences, out, scale, use_qk_l2norm);
    RecurrentArgs& args = prepared.args;
    check_gates(check, beta, gate, sequences, args.beta, args.gate);
    check_chunk_hints(check, view_of(chunk_indices), view_of(cu_chunks), sequences);
    GDN_REQUIRE(check,
                checkpoint_every >= 0 && checkpoint_every % 64 == 0 && checkpoint_every <= std::numeric_limits<int>::max(),
                "checkpoint_every", "0 or a multiple of 64", fmt::format("{}", checkpoint_every));

    const View initial = view_of(state), slots = view_of(state_indices);
    if (!initial.defined()) return prepared;
    prepared.state_type = check.dtype("state", initial, {DType::f32, DType::bf16});
    args.initial = states_of(check, prepared, "state", initial, 4);
    if (slots.defined()) {
        check.distinct("state", initial);
        vector_of_sequences(check, "state_indices", slots, sequences);
        set_slots(check, prepared, slots, initial.size(0));
        args.last = args.initial;
    } else {
        GDN_REQUIRE(check, initial.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(initial));
    }
    return prepared;
}

Prepared prepare_dense(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                       const OptionalTensor& state, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices,
                       const OptionalTensor& cu_chunks, std::optional<double> scale, bool use_qk_l2norm,
                       bool /*output_final_state*/, std::optional<ScalarType> state_dtype, int64_t checkpoint_every,
                       const Tensor& out) {
    const Checks check{"chunked_forward"};
    const bool known = !state_dtype || *state_dtype == ScalarType::Float || *state_dtype == ScalarType::BFloat16;
    GDN_REQUIRE(check, known, "state_dtype", "float32, bfloat16 or None",
                known ? "" : torch::headeronly::toString(*state_dtype));
    return prepare_chunked(query, key, value, beta, gate, state, std::nullopt, cu_seqlens, chunk_indices, cu_chunks, scale,
                           use_qk_l2norm, checkpoint_every, out);
}

Prepared prepare_pool(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                      const Tensor& state_pool, const Tensor& state_indices, const OptionalTensor& cu_seqlens,
                      const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                      bool use_qk_l2norm, int64_t checkpoint_every, const Tensor& out) {
    return prepare_chunked(query, key, value, beta, gate, state_pool, state_indices, cu_seqlens, chunk_indices, cu_chunks,
                           scale, use_qk_l2norm, checkpoint_every, out);
}

// States after every checkpoint_every tokens, packed in sequence order. Packed batches get as many as their tokens could make,
// because counting them would wait for cu_seqlens on the device; those past the last are zero.
Tensor add_checkpoints(Prepared& prepared, const Tensor& like, int64_t checkpoint_every) {
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    if (checkpoint_every == 0) return new_states(like, {0}, sequences, prepared.state_type);
    const int64_t each = sequences.tokens / checkpoint_every;
    Tensor checkpoints = new_states(like, {sequences.packed() ? each : sequences.count * each}, sequences, prepared.state_type);
    if (sequences.packed() || args.slots.data != nullptr) torch::stable::zero_(checkpoints);
    args.steps = {checkpoints.data_ptr(), sequences.packed() ? 0 : each * sequences.state_numel(), sequences.state_numel()};
    args.step_index = sequences.packed() ? RecurrentArgs::packed : RecurrentArgs::by_sequence;
    args.step_interval = static_cast<int>(checkpoint_every);
    return checkpoints;
}
}  // namespace

std::tuple<Tensor, Tensor> chunked_forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta,
                                           const Tensor& gate, const OptionalTensor& state, const OptionalTensor& cu_seqlens,
                                           const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks,
                                           std::optional<double> scale, bool use_qk_l2norm, bool output_final_state,
                                           std::optional<torch::headeronly::ScalarType> state_dtype, int64_t checkpoint_every,
                                           const Tensor& out) {
    Prepared prepared = prepare_dense(query, key, value, beta, gate, state, cu_seqlens, chunk_indices, cu_chunks, scale,
                                      use_qk_l2norm, output_final_state, state_dtype, checkpoint_every, out);
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    const ScalarType computed = prepared.state_type == DType::f32 ? ScalarType::Float : ScalarType::BFloat16;
    const ScalarType wanted = state_dtype.value_or(computed);
    OptionalTensor widened;  // a bf16 state with fp32 results: exact, and the kernel has one state type
    if (wanted == ScalarType::Float && computed == ScalarType::BFloat16) {
        widened = torch::stable::to(torch::stable::contiguous(*state), ScalarType::Float);
        prepared.state_type = DType::f32;
        args.initial = {widened->data_ptr(), sequences.state_numel(), 0};
        prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    }
    const Tensor checkpoints = add_checkpoints(prepared, out, checkpoint_every);
    const Tensor final_state = new_states(out, {output_final_state ? sequences.count : 0}, sequences, prepared.state_type);
    if (output_final_state) args.last = {final_state.data_ptr(), sequences.state_numel(), 0};
    run_chunked(prepared, out);
    const bool narrow = wanted == ScalarType::BFloat16 && prepared.state_type == DType::f32;
    if (!narrow) return {final_state, checkpoints};
    return {torch::stable::to(final_state, wanted), torch::stable::to(checkpoints, wanted)};
}

Tensor chunked_forward_pool(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                            const Tensor& state_pool, const Tensor& state_indices, const OptionalTensor& cu_seqlens,
                            const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                            bool use_qk_l2norm, int64_t checkpoint_every, const Tensor& out) {
    Prepared prepared = prepare_pool(query, key, value, beta, gate, state_pool, state_indices, cu_seqlens, chunk_indices,
                                     cu_chunks, scale, use_qk_l2norm, checkpoint_every, out);
    const Tensor checkpoints = add_checkpoints(prepared, out, checkpoint_every);
    run_chunked(prepared, out);
    return checkpoints;
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(
        m, "fused_decode",
        "Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, Tensor A_log, Tensor dt_bias, Tensor(a!) state_pool, "
        "Tensor? state_indices, Tensor? cu_seqlens, Tensor? num_accepted_tokens, int? null_slot, Tensor(b!)? step_states, "
        "Tensor? step_slots, float? scale, bool use_qk_l2norm, Tensor(c!) out",
        "()");
    define_checked(m, "recurrent_forward",
                   "Tensor query, Tensor key, Tensor value, Tensor? state, Tensor beta, Tensor gate, Tensor? cu_seqlens, "
                   "Tensor? num_accepted_tokens, int inference_mode, bool is_qk_norm, float? scale, Tensor(a!) out",
                   "Tensor");
    define_checked(m, "chunked_forward",
                   "Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor? state, Tensor? cu_seqlens, "
                   "Tensor? chunk_indices, Tensor? cu_chunks, float? scale, bool use_qk_l2norm, bool output_final_state, "
                   "ScalarType? state_dtype, int checkpoint_every, Tensor(a!) out",
                   "(Tensor, Tensor)");
    define_checked(
        m, "chunked_forward_pool",
        "Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor(a!) state_pool, Tensor state_indices, "
        "Tensor? cu_seqlens, Tensor? chunk_indices, Tensor? cu_chunks, float? scale, bool use_qk_l2norm, "
        "int checkpoint_every, Tensor(b!) out",
        "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("fused_decode", TORCH_BOX(&fused_decode));
    m.impl("recurrent_forward", TORCH_BOX(&recurrent_forward));
    m.impl("chunked_forward", TORCH_BOX(&chunked_forward));
    m.impl("chunked_forward_pool", TORCH_BOX(&chunked_forward_pool));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_fused_decode", TORCH_BOX(&OnlyCheck<prepare_decode>::run));
    m.impl("validate_recurrent_forward", TORCH_BOX(&OnlyCheck<prepare_recurrent>::run));
    m.impl("validate_chunked_forward", TORCH_BOX(&OnlyCheck<prepare_dense>::run));
    m.impl("validate_chunked_forward_pool", TORCH_BOX(&OnlyCheck<prepare_pool>::run));
}

}  // namespace gdn_cuda::gdn
