#include "prepared.hpp"

#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <limits>

namespace gdn_cuda::gdn {
namespace {

ScalarType scalar_type(DType type) {
    return type == DType::bf16 ? ScalarType::BFloat16 : type == DType::f16 ? ScalarType::Half : ScalarType::Float;
}

}  // namespace

std::vector<int64_t> output_sizes(const Tensor& query, const Tensor& value) {
    std::vector<int64_t> sizes(value.sizes().begin(), value.sizes().end());
    if (query.dim() >= 2 && sizes.size() >= 2) {
        int64_t& heads = sizes[sizes.size() - 2];
        heads = std::max(heads, query.size(-2));
    }
    return sizes;
}

Prepared prepare_states(const Sequences& sequences, bool qk_norm) {
    Prepared prepared{.sequences = sequences, .output = sequences.value};
    GdnCall& args = prepared.args;
    args.query = rows_of(sequences.query);
    args.key = rows_of(sequences.key);
    args.value = rows_of(sequences.value);
    args.output = args.value;
    args.sequences = static_cast<int>(sequences.count);
    args.tokens = static_cast<int>(sequences.tokens);
    args.heads = static_cast<int>(sequences.heads);
    args.heads_per_key = static_cast<int>(sequences.heads / sequences.key_heads);
    args.dk = static_cast<int>(sequences.dk);
    args.dv = args.values = static_cast<int>(sequences.dv);
    args.scale = 1.f;
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

float scale_of(const Checks& check, std::optional<double> scale, const Sequences& sequences) {
    GDN_REQUIRE(check, !scale || std::isfinite(*scale), "scale", "a finite number", fmt::format("{}", scale.value_or(0)));
    return static_cast<float>(scale.value_or(1.0 / std::sqrt(static_cast<double>(sequences.dk))));
}

Prepared prepare(const Checks& check, const Sequences& sequences, const Tensor& out, std::optional<double> scale,
                 bool qk_norm) {
    Prepared prepared = prepare_states(sequences, qk_norm);
    prepared.output = sequences.without_batch(View(out));
    const View& output = prepared.output;
    const View& value = sequences.value;
    GDN_REQUIRE(
        check,
        output.rank == value.rank && std::equal(output.sizes, output.sizes + output.rank - 2, value.sizes) &&
            output.size(-2) == sequences.heads && output.size(-1) == sequences.dv,
        "out",
        fmt::format("the shape of value {}{}", shape_text(value),
                    sequences.has_more_queries() ? fmt::format(" with the {} of query for heads", sequences.heads) : ""),
        shape_text(output));
    check.dtype("out", output, {sequences.io});
    check.device("out", output, sequences.query, "query");
    if (sequences.plain()) check.last_contiguous("out", output);
    check.distinct("out", output);
    GdnCall& args = prepared.args;
    args.output = rows_of(output);
    args.outputs = args.dv;
    args.scale = scale_of(check, scale, sequences);
    return prepared;
}

namespace {

GateTensors check_gates(const Checks& check, Prepared& prepared, const OptionalTensor& beta, const OptionalTensor& gate,
                        const GateOptions& options, std::optional<double> lower_bound, GatePer per) {
    GdnCall& args = prepared.args;
    const GateTensors x{view_of(beta), view_of(gate), view_of(options.A_log), view_of(options.dt_bias)};
    if (x.beta.defined()) args.beta = check_scalars(check, "beta", x.beta, prepared.sequences);
    check_decay(check, args, prepared.sequences, {x.gate_name, x.gate, x.A_log, x.dt_bias, lower_bound, options.gate_is_linear},
                per);
    GDN_REQUIRE(check, x.beta.defined() || !options.beta_is_logit, "beta", "a tensor with beta_is_logit=True", "None");
    GDN_REQUIRE(check, options.beta_is_logit || !options.allow_negative_eigenvalues, "allow_negative_eigenvalues",
                "False without beta_is_logit=True", "True");
    args.forms.beta_is_logit = options.beta_is_logit;
    args.forms.beta_factor = options.beta_factor();
    return x;
}

}  // namespace

GateTensors check_gates(const Checks& check, Prepared& prepared, const OptionalTensor& beta, const OptionalTensor& gate,
                        const GateOptions& options) {
    return check_gates(check, prepared, beta, gate, options, {}, GatePer::head);
}

GateTensors check_gates(const Checks& check, Prepared& prepared, const OptionalTensor& beta, const OptionalTensor& gate,
                        const GateOptions& options, const GateBound& bound) {
    return check_gates(check, prepared, beta, gate, options, bound.lower_bound, GatePer::head_or_channel);
}

GateTensors check_raw_gates(const Checks& check, Prepared& prepared, const Tensor& a, const Tensor& b, const DecodeGates& gates,
                            const GateBound& bound) {
    const GateTensors x{View(b), View(a), view_of(gates.A_log), view_of(gates.dt_bias), "b", "a"};
    const Sequences& sequences = prepared.sequences;
    GdnCall& args = prepared.args;
    GDN_REQUIRE(check, x.A_log.defined() || bound.lower_bound || x.gate.rank != rows_rank(sequences) - 1, "A_log",
                "a tensor, as a has a gate for each head", "None");
    check_decay(check, args, sequences, {x.gate_name, x.gate, x.A_log, x.dt_bias, bound.lower_bound}, GatePer::head_or_channel);
    args.beta = check_scalars(check, "b", x.beta, sequences);
    args.forms.beta_is_logit = true;
    args.forms.beta_factor = gates.beta_factor();
    return x;
}

void check_apart(const Checks& check, const Sequences& sequences, const GateTensors& gates,
                 std::initializer_list<Memory> written, std::initializer_list<Memory> read) {
    check.apart(written, {{sequences.names.query, sequences.query},
                          {sequences.names.key, sequences.key},
                          {sequences.names.value, sequences.value},
                          {gates.beta_name, gates.beta},
                          {gates.gate_name, gates.gate},
                          {"A_log", gates.A_log},
                          {"dt_bias", gates.dt_bias},
                          {"cu_seqlens", sequences.cu_seqlens}});
    for (const Memory& each : written) check.apart({each}, read);
}

void check_has_initial(const Checks& check, Prepared& prepared, const View& has_initial_state) {
    if (!has_initial_state.defined()) return;
    check.shape("has_initial_state", has_initial_state, {prepared.sequences.count}, "(sequences,)");
    GDN_REQUIRE(check, has_initial_state.dtype == torch_numbers.boolean, "has_initial_state", "bool",
                dtype_name(has_initial_state));
    check.device("has_initial_state", has_initial_state, prepared.sequences.query, "query");
    check.last_contiguous("has_initial_state", has_initial_state);
    // Without a state all sequences start from zeros.
    if (prepared.args.initial.data != nullptr) prepared.args.has_initial = static_cast<const bool*>(has_initial_state.data);
}

RecurrentStates check_final_state(const Checks& check, Prepared& prepared, const View& final_state,
                                  std::initializer_list<DType> allowed) {
    const RecurrentStates states = check_states(check, prepared, "final_state", final_state, 4, allowed);
    GDN_REQUIRE(check, final_state.size(0) == prepared.sequences.count, "final_state",
                fmt::format("a state for each of {} sequences", prepared.sequences.count), shape_text(final_state));
    check.distinct("final_state", final_state);
    return states;
}

void check_write_indices(const Checks& check, Prepared& prepared, const View& write_indices, const SlotTensors& slots,
                         bool to_pool) {
    gdn_cuda::check_write_indices(check, write_indices, slots, to_pool, prepared.sequences.batch());
    prepared.args.last_slots = tagged(write_indices);
    prepared.args.last_slot_count = prepared.args.slot_count;
}

RecurrentStates contiguous_states(void* data, const Sequences& sequences, DType type, int64_t steps) {
    const int64_t state = sequences.state_numel();
    return {.data = data,
            .slot = steps * state,
            .step = state,
            .head = sequences.dv * sequences.dk,
            .row = sequences.dk,
            .column = 1,
            .type = type};
}

RecurrentStates check_initial(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank,
                              std::initializer_list<DType> allowed) {
    prepared.state_type = dtype_beside(check, argument, states, prepared.sequences.io, allowed);
    return check_states(check, prepared, argument, states, rank, allowed);
}

RecurrentStates check_coded_initial(const Checks& check, Prepared& prepared, const char* argument, const View& states,
                                    const char* scales_argument, const View& scales, int rank) {
    RecurrentStates found =
        check_initial(check, prepared, argument, states, rank, {DType::f32, DType::bf16, DType::f16, DType::i8});
    check_scales(check, prepared, found, argument, states, scales_argument, scales);
    return found;
}

void check_scales(const Checks& check, const Prepared& prepared, RecurrentStates& states, const char* argument,
                  const View& states_view, const char* scales_argument, const View& scales) {
    check_state_scales(check, argument, states_view, scales_argument, scales, states_view.rank - 3, prepared.sequences.io);
    if (!scales.defined()) return;
    states.scales = static_cast<float*>(scales.data);
    states.scales_slot = scales.stride(0);
    states.scales_step = scales.rank == 5 ? scales.stride(1) : 0;
}

RecurrentStates check_states(const Checks& check, Prepared& prepared, const char* argument, const View& states, int rank,
                             std::initializer_list<DType> allowed) {
    const Sequences& sequences = prepared.sequences;
    check.rank(argument, states, rank, rank == 4 ? "(slots, Hv, dv, dk)" : "(slots, steps, Hv, dv, dk)");
    const int64_t expected[] = {sequences.heads, sequences.dv, sequences.dk};
    GDN_REQUIRE(check, std::equal(expected, expected + 3, states.sizes + rank - 3), argument,
                fmt::format("states of ({}, dv, dk) = {}", sequences.has_more_queries() ? "Hq" : "Hv",
                            shape_text({expected[0], expected[1], expected[2]})),
                shape_text(states));
    check.device(argument, states, sequences.query, "query");
    const DType type = dtype_beside(check, argument, states, sequences.io, allowed);
    prepared.plain_states =
        prepared.plain_states && states.contiguous_tail(3) && type == prepared.state_type && type != DType::f16;
    prepared.aligned_states = prepared.aligned_states && states.aligned16();
    prepared.aligned = prepared.aligned && prepared.aligned_states;
    return {.data = states.data,
            .slot = states.stride(0),
            .step = rank == 5 ? states.stride(1) : 0,
            .head = states.stride(-3),
            .row = states.stride(-2),
            .column = states.stride(-1),
            .type = type};
}

Tensor new_states(const Tensor& like, std::initializer_list<int64_t> leading, const Sequences& sequences, DType type) {
    std::vector<int64_t> shape(leading);
    shape.insert(shape.end(), {sequences.heads, sequences.dv, sequences.dk});
    return new_tensor(like, shape, scalar_type(type));
}

void clear_without_sequences(const Sequences& sequences, const Tensor& out) {
    if (!sequences.packed() || sequences.count > 0) return;
    Tensor cleared = out;
    torch::stable::zero_(cleared);
}

Tensor as_dtype(const Tensor& states, DType type) {
    return dtype_of(View(states)) == type ? states : torch::stable::to(states, scalar_type(type));
}

}  // namespace gdn_cuda::gdn
