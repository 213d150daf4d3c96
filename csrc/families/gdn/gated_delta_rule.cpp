// gated_delta_rule and its backward: chunked_forward with gradients.
#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/gdn.hpp>
#include <tuple>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/torch_math.hpp"
#include "../common/uncovered_zeros.hpp"
#include "backward_passes.hpp"
#include "chunk_gates_backward.hpp"
#include "chunk_inputs.hpp"
#include "kda_backward_passes.hpp"
#include "kda_chunks.hpp"

namespace gdn_cuda::gdn {
namespace {

constexpr const char* kFunction = ChunkedForward::name;  // what users call

// The backward of calls that no kernel takes, in Python. It has the arguments and results of the operator itself.
struct BackwardByReference : GatedDeltaRuleBackward {
    static constexpr const char* name = "gated_delta_rule_backward_reference";
};
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// Tokens between the states that forward leaves for the backward; 0: none. Often where there are few blocks, for parts of
// sequences that run at once; else for windows of tokens that fit the workspace. None where whole sequences fill a GPU, or a
// sequence has to have the same bits in every batch. gdn_cuda/gdn/training.py has the shapes.
bool has_channel_gates(const GatedDeltaRule& x) {
    return x.gate && x.gate->dim() == x.value->dim();
}
int64_t checkpoint_interval(const GatedDeltaRule& x, const Sequences& sequences) {
    const int64_t blocks = sequences.count * sequences.heads * ceil_div(sequences.dv, i64{kValueRows});
    const int64_t interval = blocks < 64 ? 1024 : 8192;
    const bool none = x.recurrent || x.deterministic || sequences.packed() || has_channel_gates(x) || blocks >= 256 ||
                      sequences.tokens <= interval;
    return none ? 0 : interval;
}
std::vector<int64_t> checkpoint_sizes(const Sequences& sequences, int64_t interval) {
    return {interval > 0 ? sequences.count * (sequences.tokens / interval) : 0, sequences.heads, sequences.dv, sequences.dk};
}

ChunkedForward as_chunked_forward(const GatedDeltaRule& x, int64_t checkpoint_interval) {
    return {.query = x.query,
            .key = x.key,
            .value = x.value,
            .beta = x.beta,
            .gate = x.gate,
            .state = x.state,
            .cu_seqlens = x.cu_seqlens,
            .scale = x.scale,
            .use_qk_l2norm = x.use_qk_l2norm,
            .state_dtype = ScalarType::Float,
            .checkpoint_every = checkpoint_interval,
            .deterministic = x.deterministic,
            .gates = x.gates,
            .bound = x.bound,
            .has_initial_state = x.has_initial_state};
}

// ---- Forward

struct PreparedRule : Prepared {
    GateTensors tensors;
};

PreparedRule prepare_rule(const GatedDeltaRule& x) {
    const Checks check{kFunction};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::any);
    PreparedRule prepared{prepare_states(sequences, x.use_qk_l2norm), {}};
    prepared.args.outputs = prepared.args.dv;
    prepared.args.scale = scale_of(check, x.scale, sequences);
    prepared.tensors = check_gates(check, prepared, x.beta, x.gate, x.gates, x.bound);
    if (x.workspace) GDN_REQUIRE(check, *x.workspace >= 0, "workspace", "bytes, not negative", fmt::format("{}", *x.workspace));
    if (const View state = view_of(x.state); state.defined()) {
        prepared.args.initial = check_initial(check, prepared, "state", state, 4);
        GDN_REQUIRE(check, state.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(state));
    }
    check_has_initial(check, prepared, view_of(x.has_initial_state));
    return prepared;
}

// Rows that kernels load in vectors of 16 bytes; an expanded last dimension has a stride of 0.
bool has_vectors(const View& rows) {
    return rows.stride(-1) == 1 && rows.aligned16();
}
bool kernels_take(const PreparedRule& prepared, const Target& target) {
    const Sequences& sequences = prepared.sequences;
    return sequences.plain() && has_vectors(sequences.query) && has_vectors(sequences.key) && has_vectors(sequences.value) &&
           sequences.count <= kMaxGridYZ && sequences.heads <= kMaxGridYZ &&
           jit::device_traits(target.ordinal).capability >= BackwardMmaStates::kernel.min_capability;
}

OptionalTensor in_fp32(const OptionalTensor& states) {
    if (!states) return std::nullopt;
    return torch::stable::contiguous(torch::stable::to(*states, ScalarType::Float));
}

std::tuple<Tensor, Tensor, Tensor> run_rule(const GatedDeltaRule& x) {
    const PreparedRule prepared = prepare_rule(x);
    const Sequences& sequences = prepared.sequences;
    const Target target = target_of(kFunction, sequences.query);
    const bool by_channel = has_channel_gates(x), on_kernels = kernels_take(prepared, target);
    if (on_kernels && by_channel && takes_kda_gates(prepared) && BackwardPasses::takes(prepared.args, target)) {
        BackwardPasses::prefetch(prepared.args, sequences.io, target);
    } else if (on_kernels && by_channel) {
        KdaBackwardPasses::prefetch(prepared.args, sequences.io, target);
    } else if (on_kernels) {
        BackwardPasses::prefetch(prepared.args, sequences.io, target);
        prefetch<ChunkGatesBackward>(kChunkGatesBackwardConfigurations.front(), target);
    }
    const int64_t interval = checkpoint_interval(x, sequences);
    const auto without_checkpoints = [&] { return new_tensor(x.value, checkpoint_sizes(sequences, 0), ScalarType::Float); };
    if (x.recurrent) {  // fp32 states, with the caller's strides, which decide on the kernel, and so on the bits
        const auto [out, last] =
            recurrent_forward({.query = x.query,
                               .key = x.key,
                               .value = x.value,
                               .state = x.state ? OptionalTensor(torch::stable::to(*x.state, ScalarType::Float)) : x.state,
                               .beta = x.beta,
                               .gate = x.gate,
                               .cu_seqlens = x.cu_seqlens,
                               .is_qk_norm = x.use_qk_l2norm,
                               .scale = x.scale,
                               .gates = x.gates,
                               .bound = x.bound,
                               .has_initial_state = x.has_initial_state});
        return {out, last, without_checkpoints()};
    }
    const ChunkedResult result = chunked_forward(as_chunked_forward(x, interval));
    return {result.output, *result.final_state, result.checkpoints ? *result.checkpoints : without_checkpoints()};
}

// ---- Backward

PreparedRule prepare_backward(const GatedDeltaRuleBackward& x) {
    PreparedRule prepared = prepare_rule(x.forward);
    const Checks check{kFunction};
    const Sequences& sequences = prepared.sequences;
    if (const View grad = view_of(x.grad_out); grad.defined()) {
        const std::vector<int64_t> output = output_sizes(x.forward.query, x.forward.value);
        GDN_REQUIRE(
            check, std::equal(grad.sizes, grad.sizes + grad.rank, output.begin(), output.end()), "grad_out",
            fmt::format("the shape of value {}{}", shape_text(View(x.forward.value)),
                        sequences.has_more_queries() ? fmt::format(" with the {} of query for heads", sequences.heads) : ""),
            shape_text(grad));
        check.dtype("grad_out", grad, {sequences.io});
        check.device("grad_out", grad, sequences.query, "query");
    }
    if (const View grad = view_of(x.grad_final_state); grad.defined()) {
        check.shape("grad_final_state", grad, {sequences.count, sequences.heads, sequences.dv, sequences.dk},
                    "(sequences, Hv, dv, dk)");
        dtype_beside(check, "grad_final_state", grad, sequences.io);
        check.device("grad_final_state", grad, sequences.query, "query");
    }
    if (const View states = view_of(x.checkpoints); states.defined()) {
        const std::vector<int64_t> sizes = checkpoint_sizes(sequences, checkpoint_interval(x.forward, sequences));
        check.shape("checkpoints", states, {sizes[0], sizes[1], sizes[2], sizes[3]}, "those that forward has returned");
        check.dtype("checkpoints", states, {DType::f32});
        check.device("checkpoints", states, sequences.query, "query");
    }
    return prepared;
}

Tensor zeros(const Tensor& like, const std::vector<int64_t>& sizes, ScalarType type) {
    Tensor made = new_tensor(like, sizes, type);
    torch::stable::zero_(made);
    return made;
}
std::vector<int64_t> sizes_of(const View& view) {
    return {view.sizes, view.sizes + view.rank};
}

// `states` with zeros for sequences that start without one.
OptionalTensor without_absent(const OptionalTensor& states, const GatedDeltaRule& forward) {
    if (!states || !forward.has_initial_state) return states;
    const Tensor absent = torch::stable::reshape(math::logical_not(*forward.has_initial_state), {-1, 1, 1, 1});
    return math::masked_fill(*states, absent, math::number(0));
}
// `gradient` of values with zeros for tokens whose beta is 0. It counts as the least beta in the chains.
Tensor without_unwritten(const Tensor& gradient, const GatedDeltaRule& forward) {
    if (!forward.beta) return gradient;
    Tensor beta = *forward.beta;
    if (forward.gates.beta_is_logit) beta = call_torch("aten::sigmoid", "", torch::stable::to(beta, ScalarType::Float));
    const Tensor is_zero = torch::stable::unsqueeze(math::logical_not(beta), -1);
    return math::masked_fill(gradient, is_zero, math::number(0));
}

// What the backward by kernels reads and writes beside the call's own tensors.
struct BackwardTensors {
    WantedGradients wanted;
    Tensor query, key, value, state;  // gradients; tokens of no sequence have zeros
    Tensor output;                    // the output's gradient
    OptionalTensor initial, final;    // states in fp32, and the final state's gradient
    Tensor absent;

    BackwardTensors(const Sequences& sequences, const GatedDeltaRuleBackward& x, const Target& target)
        : wanted(x.only_state             ? WantedGradients::state
                 : x.only_value_and_state ? WantedGradients::value_and_state
                                          : WantedGradients::all),
          query(like(x.forward.query)),
          key(like(x.forward.key)),
          value(like(x.forward.value)),
          state(new_tensor(x.forward.value, {sequences.count, sequences.heads, sequences.dv, sequences.dk}, ScalarType::Float)),
          output(!x.grad_out ? zeros(x.forward.value, sizes_of(View(x.forward.value)), x.forward.value->scalar_type())
                 : has_vectors(View(*x.grad_out)) ? *x.grad_out
                                                  : torch::stable::contiguous(*x.grad_out)),
          initial(without_absent(in_fp32(x.forward.state), x.forward)),
          final(in_fp32(x.grad_final_state)),
          absent(new_tensor(x.forward.value, {0}, ScalarType::Float)) {
        if (!sequences.packed() || wanted == WantedGradients::state) return;
        const auto token_rows = [&](const Tensor& gradient, int64_t heads, int64_t d) {
            const i64 bytes = heads * d * bytes_of(sequences.io);
            return common::TokenRows{.data = memory_of(gradient), .token = bytes, .rows = 1, .bytes = static_cast<int>(bytes)};
        };
        common::UncoveredZeros::run(
            {token_rows(query, sequences.key_heads, sequences.dk), token_rows(key, sequences.key_heads, sequences.dk),
             token_rows(value, sequences.value_heads, sequences.dv)},
            tagged(sequences.cu_seqlens), static_cast<int>(sequences.count), static_cast<int>(sequences.tokens), target);
    }
    static Tensor like(const Tensor& x) { return new_tensor(x, sizes_of(View(x))); }
    Tensor gradient_of(const OptionalTensor& x) const { return x ? like(*x) : absent; }
};

Gradients run_by_kernels(PreparedRule& prepared, const GatedDeltaRuleBackward& x, const Target& target) {
    const GatedDeltaRule& forward = x.forward;
    const Sequences& sequences = prepared.sequences;
    const BackwardTensors tensors(sequences, x, target);
    const auto rows = [&](const Tensor& x) { return rows_of(sequences.without_batch(View(x))); };
    const auto place = [&](const OptionalTensor& states) {
        return states ? contiguous_states(memory_of(*states), sequences, DType::f32) : RecurrentStates{};
    };
    const WantedGradients wanted = tensors.wanted;
    const std::vector<int64_t> numbers{sequences.packed() ? 1 : sequences.count, sequences.tokens, sequences.heads},
        gates_sizes = wanted == WantedGradients::all ? numbers : std::vector<int64_t>{0};
    const Tensor by_gate = zeros(forward.value, gates_sizes, ScalarType::Float),
                 by_beta = zeros(forward.value, gates_sizes, ScalarType::Float);

    ChunkInputs inputs(prepared, forward.value, target);
    const GdnCall given = prepared.args;
    if (!has_chunk_gates(prepared.args)) inputs.convert_gates();
    prepared.args.has_initial = nullptr;  // `initial` has zeros where it is false, and final states have gradients everywhere
    const OptionalTensor states_of_forward =
        x.checkpoints ? OptionalTensor(torch::stable::contiguous(*x.checkpoints)) : x.checkpoints;
    StateCheckpoints checkpoints{};
    if (states_of_forward && View(*states_of_forward).size(0) > 0) {
        checkpoints.interval = checkpoint_interval(forward, sequences);
        checkpoints.states =
            contiguous_states(memory_of(*states_of_forward), sequences, DType::f32, sequences.tokens / checkpoints.interval);
    }
    const BackwardPasses passes{.call = prepared.args,
                                .io = sequences.io,
                                .output_gradient = rows(tensors.output),
                                .query_gradient = rows(tensors.query),
                                .key_gradient = rows(tensors.key),
                                .value_gradient = rows(tensors.value),
                                .initial = place(tensors.initial),
                                .final_gradient = place(tensors.final),
                                .initial_gradient = place(tensors.state),
                                .checkpoints = checkpoints,
                                .beta_gradient = static_cast<float*>(memory_of(by_beta)),
                                .gate_gradient = static_cast<float*>(memory_of(by_gate)),
                                .channel_gradients = {},
                                .wanted = wanted,
                                .deterministic = forward.deterministic};
    passes.run(Checks{kFunction}, sequences, forward.workspace, forward.value, target);
    const Tensor& absent = tensors.absent;
    const Tensor state_gradient = forward.state ? *without_absent(tensors.state, forward) : absent;
    if (wanted == WantedGradients::state) return {absent, absent, absent, absent, absent, state_gradient, absent, absent};
    if (wanted == WantedGradients::value_and_state)
        return {absent, absent, without_unwritten(tensors.value, forward), absent, absent, state_gradient, absent, absent};

    // Gates, as the call has them.
    const Tensor to_beta = tensors.gradient_of(forward.beta), to_gate = tensors.gradient_of(forward.gate);
    const bool raw = forward.gates.A_log.has_value();
    ChunkGatesBackwardArgs gates{.gate = given.gate,
                                 .beta = given.beta,
                                 .forms = given.forms,
                                 .A_log = given.A_log,
                                 .dt_bias = given.dt_bias,
                                 .log_decay_gradient = passes.gate_gradient,
                                 .beta_gradient = passes.beta_gradient,
                                 .gate_to = forward.gate ? tagged(View(to_gate)) : Tagged{},
                                 .beta_to = forward.beta ? tagged(View(to_beta)) : Tagged{},
                                 .sums = nullptr,
                                 .sequences = numbers[0],
                                 .tokens = sequences.tokens,
                                 .heads = static_cast<int>(sequences.heads),
                                 .lanes = 1,
                                 .tokens_of_block = 0};
    const i64 blocks = ChunkGatesBackward::spread(gates);
    const Tensor sums = zeros(forward.value, {2, raw ? blocks : 0, sequences.heads}, ScalarType::Float);
    if (raw) gates.sums = static_cast<float*>(memory_of(sums));
    ChunkGatesBackward::run(gates, blocks, target);
    const auto sum_of = [&](int64_t which, bool is_given) {
        return is_given ? math::sum(torch::stable::select(sums, 0, which), 0) : absent;
    };
    return {tensors.query, tensors.key,    tensors.value,  to_beta,
            to_gate,       state_gradient, sum_of(0, raw), sum_of(1, forward.gates.dt_bias.has_value())};
}

Gradients run_by_channel_kernels(PreparedRule& prepared, const GatedDeltaRuleBackward& x, const Target& target) {
    const GatedDeltaRule& forward = x.forward;
    const Sequences& sequences = prepared.sequences;
    const BackwardTensors tensors(sequences, x, target);
    const Tensor& absent = tensors.absent;
    const auto rows = [&](const Tensor& x) { return rows_of(sequences.without_batch(View(x))); };
    const auto place = [&](const OptionalTensor& states) {
        return states ? contiguous_states(memory_of(*states), sequences, DType::f32) : RecurrentStates{};
    };
    const bool all = tensors.wanted == WantedGradients::all;
    const auto gate_gradient = [&](const OptionalTensor& x) {  // tokens of no sequence have zeros
        if (!x || !all) return absent;
        return sequences.packed() ? zeros(*x, sizes_of(View(*x)), x->scalar_type()) : tensors.like(*x);
    };
    const Tensor to_beta = gate_gradient(forward.beta), to_gate = gate_gradient(forward.gate);
    prepared.args.has_initial = nullptr;  // `initial` has zeros where it is false, and final states have gradients everywhere
    BackwardPasses by_wide_chunks{.call = prepared.args,
                                  .io = sequences.io,
                                  .output_gradient = rows(tensors.output),
                                  .query_gradient = rows(tensors.query),
                                  .key_gradient = rows(tensors.key),
                                  .value_gradient = rows(tensors.value),
                                  .initial = place(tensors.initial),
                                  .final_gradient = place(tensors.final),
                                  .initial_gradient = place(tensors.state),
                                  .checkpoints = {},
                                  .beta_gradient = nullptr,
                                  .gate_gradient = nullptr,
                                  .channel_gradients = {.gate = all ? tagged(View(to_gate)) : Tagged{},
                                                        .beta = all && forward.beta ? tagged(View(to_beta)) : Tagged{}},
                                  .wanted = tensors.wanted,
                                  .deterministic = forward.deterministic};
    const bool wide = takes_kda_gates(prepared) && by_wide_chunks.hopper(target);
    KdaBackwardPasses passes{.call = prepared.args,
                             .io = sequences.io,
                             .output_gradient = by_wide_chunks.output_gradient,
                             .query_gradient = by_wide_chunks.query_gradient,
                             .key_gradient = by_wide_chunks.key_gradient,
                             .value_gradient = by_wide_chunks.value_gradient,
                             .initial = by_wide_chunks.initial,
                             .final_gradient = by_wide_chunks.final_gradient,
                             .initial_gradient = by_wide_chunks.initial_gradient,
                             .gate_gradient = by_wide_chunks.channel_gradients.gate,
                             .beta_gradient = by_wide_chunks.channel_gradients.beta,
                             .sums = nullptr,
                             .wanted = tensors.wanted};
    const bool has_A_log = forward.gates.A_log.has_value(), has_bias = forward.gates.dt_bias.has_value(),
               sums_gates = all && (has_A_log || has_bias);
    const i64 chunks = !sums_gates ? 0 : wide ? by_wide_chunks.chunks_of(sequences.tokens) : passes.chunks();
    const Tensor sums = zeros(forward.value, {2, chunks, sequences.heads, sequences.dk}, ScalarType::Float);
    if (sums_gates) by_wide_chunks.channel_gradients.sums = passes.sums = static_cast<float*>(memory_of(sums));
    if (wide)
        by_wide_chunks.run(Checks{kFunction}, sequences, forward.workspace, forward.value, target);
    else
        passes.run(Checks{kFunction}, forward.workspace, forward.value, target);
    const auto sum_of = [&](int64_t which) { return math::sum(torch::stable::select(sums, 0, which), 0); };
    return {all ? tensors.query : absent,
            all ? tensors.key : absent,
            tensors.wanted == WantedGradients::state ? absent
            : all || !wide                           ? tensors.value
                                                     : without_unwritten(tensors.value, forward),
            to_beta,
            to_gate,
            forward.state ? *without_absent(tensors.state, forward) : absent,
            all && has_A_log ? math::sum(sum_of(0), -1) : absent,
            all && has_bias ? torch::stable::reshape(sum_of(1), forward.gates.dt_bias->sizes()) : absent};
}

// (…, H, d) to (…, heads, d): adjacent heads are copies of one.
Tensor repeated_heads(const Tensor& rows, int64_t heads) {
    std::vector<int64_t> sizes(rows.sizes().begin(), rows.sizes().end());
    const size_t at = sizes.size() - 2;
    std::vector<int64_t> one = sizes, each = sizes;
    one.insert(one.begin() + at + 1, 1);
    each.insert(each.begin() + at + 1, heads / sizes[at]);
    sizes[at] = heads;
    return math::reshape(math::expand(math::reshape(rows, one), each), sizes);
}
// The sums over those copies; `like`: the rows that were repeated.
Tensor summed_heads(const Tensor& rows, const Tensor& like) {
    if (rows.dim() != like.dim()) return rows;  // not computed
    std::vector<int64_t> sizes(like.sizes().begin(), like.sizes().end());
    sizes.insert(sizes.end() - 1, rows.size(-2) / like.size(-2));
    return math::sum(math::reshape(rows, sizes), -2);
}

Gradients run_backward(const GatedDeltaRuleBackward& x) {
    PreparedRule prepared = prepare_backward(x);
    if (prepared.sequences.has_more_queries()) {
        GatedDeltaRuleBackward repeated = x;
        repeated.forward.key.emplace(repeated_heads(x.forward.key, prepared.sequences.heads));
        repeated.forward.value.emplace(repeated_heads(x.forward.value, prepared.sequences.heads));
        Gradients found = run_backward(repeated);
        std::get<1>(found) = summed_heads(std::get<1>(found), x.forward.key);
        std::get<2>(found) = summed_heads(std::get<2>(found), x.forward.value);
        return found;
    }
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(kFunction, prepared.sequences.query);
    if (kernels_take(prepared, target))
        return has_channel_gates(x.forward) ? run_by_channel_kernels(prepared, x, target) : run_by_kernels(prepared, x, target);
    return call_through_torch<BackwardByReference, Gradients>(BackwardByReference{x});
}
// Where Python has not registered the reference.
Gradients refuse(const BackwardByReference& x) {
    fail(kFunction, "query", "16-bit rows of a multiple of 8 elements that start on 16 bytes, for gradients without Python",
         shape_text(View(x.forward.query)));
}

GDN_REGISTER(GatedDeltaRule, prepare_rule, run_rule)
GDN_REGISTER(GatedDeltaRuleBackward, prepare_backward, run_backward)
STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define<BackwardByReference, refuse>(m);
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CompositeExplicitAutograd, m) {
    m.impl(BackwardByReference::name, &detail::run_boxed<BackwardByReference, refuse>);
}

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

GDN_FUNCTION(gated_delta_rule, GatedDeltaRule, gdn::run_rule)

GatedDeltaRuleGradients gated_delta_rule_backward(const GatedDeltaRuleBackward& x) {
    require_given(x.name, x);
    auto [query, key, value, beta, gate, state, A_log, dt_bias] = call<GatedDeltaRuleBackward, gdn::run_backward>(x);
    return {query, key, value, beta, gate, state, A_log, dt_bias};
}

}  // namespace gdn_cuda
