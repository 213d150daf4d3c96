// chunked_forward: prefill with dense states or a state pool, and the choice of its kernel.
#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <gdn_cuda/gdn.hpp>
#include <limits>

#include "../../operators/operator.hpp"
#include "prefill.hpp"
#include "prefill_mma.hpp"
#include "prepared.hpp"

namespace gdn_cuda::gdn {
namespace {

// chunked_forward that reads and writes slots of a state pool.
struct ChunkedForwardPool {
    static constexpr const char* name = "chunked_forward_pool";
    Given query, key, value, beta, gate;
    Written state;
    Given state_indices;
    OptionalTensor cu_seqlens = {};
    std::optional<double> scale = {};
    bool use_qk_l2norm = false;
    int64_t checkpoint_every = 0;
    bool deterministic = false;
    Output out = {};

    GDN_FIELDS(query, key, value, beta, gate, state, state_indices, cu_seqlens, scale, use_qk_l2norm, checkpoint_every,
               deterministic, out)
};

// Runs whole chunks on tensor cores where device and tensors allow, else token by token. The choice does not depend on what a
// sequence is batched with, except that more than kMaxGridYZ sequences go token by token. `out`: any tensor of the call;
// workspace is allocated like it.
void run_chunked(const Prepared& prepared, bool deterministic, const Tensor& out) {
    const Sequences& sequences = prepared.sequences;
    const RecurrentArgs& args = prepared.args;
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of(ChunkedForward::name, sequences.query);
    const auto tiled = [&](const Rows& rows, int64_t heads, int64_t d) {
        return jit::TiledTensor{rows, sequences.packed() ? 1 : sequences.count, sequences.tokens, heads, d};
    };
    PrefillTensors tensors{tiled(args.query, sequences.key_heads, sequences.dk),
                           tiled(args.key, sequences.key_heads, sequences.dk),
                           tiled(args.value, sequences.value_heads, sequences.dv),
                           tiled(args.output, sequences.value_heads, sequences.dv),
                           args.last.data != nullptr && args.initial.data == args.last.data,
                           nullptr,
                           nullptr};
    const bool tiles = jit::can_tile(tensors.query) && jit::can_tile(tensors.key) && jit::can_tile(tensors.value) &&
                       jit::can_tile(tensors.output);
    const auto near = [](const Scalars& scalars) { return std::abs(scalars.token) <= kMostBetweenScalars; };
    const bool rows_fit = tiles && prepared.aligned && sequences.tokens > 0 && sequences.count <= kMaxGridYZ;
    const PrefillProblem problem{.sequences = sequences.count,
                                 .tokens = sequences.mean_tokens(),
                                 .heads = args.heads,
                                 .dk = args.dk,
                                 .dv = args.dv,
                                 .io = sequences.io,
                                 .state = prepared.state_type,
                                 .deterministic = deterministic};
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    OptionalTensor counts = {}, workspace = {};
    const bool scalars_near = near(args.gate) && near(args.beta);
    const jit::Prefill wanted = jit::env().prefill;
    if (target.is_explained()) [[unlikely]]
        remark(explain_prefill_kernel(rows_fit, scalars_near, args.dk, device.capability, wanted));
    switch (prefill_kernel(rows_fit, scalars_near, args.dk, device.capability, wanted)) {
        case PrefillKernel::wgmma: {
            const PrefillChoice choice = Prefill::choice(problem, target);
            if (choice.workspace() > 0) {
                workspace = torch::stable::new_empty(out, {choice.workspace()}, ScalarType::Float);
                tensors.workspace = static_cast<float*>(memory_of(*workspace));
            }
            if (const i64 words = choice.counts(tensors.in_place); words > 0) {
                counts = torch::stable::new_empty(out, {words}, ScalarType::Int);
                torch::stable::zero_(*counts);
                tensors.counts = static_cast<unsigned*>(memory_of(*counts));
            }
            return Prefill::run(problem, choice, args, tensors, target);
        }
        case PrefillKernel::mma:
            return PrefillMma::run(problem, args, target);
        case PrefillKernel::recurrent:
            return run_by_token(prepared, ChunkedForward::name);
    }
}

// For both operators; `indices`: of slots, or none.
Prepared prepare_chunked(const auto& x, const OptionalTensor& indices) {
    const Checks check{ChunkedForward::name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens));
    Prepared prepared = prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm);
    RecurrentArgs& args = prepared.args;
    const View beta(x.beta), gate(x.gate);
    check_gates(check, beta, gate, sequences, args.beta, args.gate);
    const int64_t every = x.checkpoint_every;
    GDN_REQUIRE(check, every >= 0 && every % kChunk == 0 && every <= std::numeric_limits<int>::max(), "checkpoint_every",
                fmt::format("0 or a multiple of {}", kChunk), fmt::format("{}", every));

    const View state = view_of(x.state), slots = view_of(indices);
    if (state.defined()) {
        prepared.state_type = check.dtype("state", state, {DType::f32, DType::bf16});
        args.initial = check_states(check, prepared, "state", state, 4);
    }
    if (slots.defined()) {
        check.distinct("state", state);
        check_per_sequence(check, "state_indices", slots, sequences.batch());
        set_slots(check, args, {.pool_name = "state", .slots_name = "state_indices", .pool = state, .slots = slots});
        args.last = args.initial;
    } else if (state.defined()) {
        GDN_REQUIRE(check, state.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(state));
    }
    const View none;
    check.apart({{"state", slots.defined() ? state : none}, {"out", prepared.output}},
                {{"query", sequences.query},
                 {"key", sequences.key},
                 {"value", sequences.value},
                 {"beta", beta},
                 {"gate", gate},
                 {"state", slots.defined() ? none : state},
                 {"state_indices", slots},
                 {"cu_seqlens", sequences.cu_seqlens}});
    return prepared;
}

Prepared prepare_dense(const ChunkedForward& x) {
    const Checks check{x.name};
    const bool known = !x.state_dtype || *x.state_dtype == ScalarType::Float || *x.state_dtype == ScalarType::BFloat16;
    GDN_REQUIRE(check, known, "state_dtype", "float32, bfloat16 or None", known ? "" : dtype_name(*x.state_dtype));
    return prepare_chunked(x, std::nullopt);
}

Prepared prepare_pool(const ChunkedForwardPool& x) {
    return prepare_chunked(x, x.state_indices);
}

// Allocates the states after every checkpoint_every tokens, packed in sequence order. Packed batches get the most that their
// tokens allow, since the exact count would need cu_seqlens from the device; unused ones are zero.
Tensor add_checkpoints(Prepared& prepared, const Tensor& like, int64_t checkpoint_every) {
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    if (checkpoint_every == 0) return new_states(like, {0}, sequences, prepared.state_type);
    const int64_t each = sequences.tokens / checkpoint_every;
    Tensor checkpoints = new_states(like, {sequences.packed() ? each : sequences.count * each}, sequences, prepared.state_type);
    if (sequences.packed() || args.slots.data != nullptr) torch::stable::zero_(checkpoints);
    args.steps = {memory_of(checkpoints), sequences.packed() ? 0 : each * sequences.state_numel(), sequences.state_numel()};
    args.step_index = sequences.packed() ? RecurrentArgs::packed : RecurrentArgs::by_sequence;
    args.step_interval = static_cast<int>(checkpoint_every);
    return checkpoints;
}

// (final state, or empty; checkpoints, or empty)
std::tuple<Tensor, Tensor> run_dense(const ChunkedForward& x) {
    Prepared prepared = prepare_dense(x);
    const Sequences& sequences = prepared.sequences;
    RecurrentArgs& args = prepared.args;
    const ScalarType computed = prepared.state_type == DType::f32 ? ScalarType::Float : ScalarType::BFloat16;
    const ScalarType wanted = x.state_dtype.value_or(computed);
    OptionalTensor widened = {};  // a bf16 state with fp32 results: widening is exact, and the kernel has one state type
    if (wanted == ScalarType::Float && computed == ScalarType::BFloat16) {
        widened = torch::stable::to(torch::stable::contiguous(*x.state), ScalarType::Float);
        prepared.state_type = DType::f32;
        args.initial = {memory_of(*widened), sequences.state_numel(), 0};
        prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    }
    const Tensor checkpoints = add_checkpoints(prepared, x.out, x.checkpoint_every);
    const Tensor final_state = new_states(x.out, {x.output_final_state ? sequences.count : 0}, sequences, prepared.state_type);
    if (x.output_final_state) args.last = {memory_of(final_state), sequences.state_numel(), 0};
    run_chunked(prepared, x.deterministic, x.out);
    const bool narrow = wanted == ScalarType::BFloat16 && prepared.state_type == DType::f32;
    if (!narrow) return {final_state, checkpoints};
    return {torch::stable::to(final_state, wanted), torch::stable::to(checkpoints, wanted)};
}

// Returns the checkpoints.
Tensor run_pool(const ChunkedForwardPool& x) {
    Prepared prepared = prepare_pool(x);
    const Tensor checkpoints = add_checkpoints(prepared, x.out, x.checkpoint_every);
    run_chunked(prepared, x.deterministic, x.out);
    return checkpoints;
}

GDN_REGISTER(ChunkedForward, prepare_dense, run_dense)
GDN_REGISTER(ChunkedForwardPool, prepare_pool, run_pool)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

ChunkedResult chunked_forward(const ChunkedForward& x) {
    require_given(x.name, x);
    if (!x.out) return chunked_forward(with_output_like(x.value, x));
    ChunkedResult result{.output = x.out, .final_state = {}, .checkpoints = {}};
    OptionalTensor checkpoints = {};
    if (x.state_indices) {
        if (!x.state) fail(x.name, "state", "a pool (slots, Hv, dv, dk) with state_indices", "none");
        if (x.state_dtype && *x.state_dtype != x.state->scalar_type())
            fail(x.name, "state_dtype", "none, or the pool's dtype, with state_indices", dtype_name(*x.state_dtype));
        checkpoints = call<gdn::ChunkedForwardPool, gdn::run_pool>({.query = x.query,
                                                                    .key = x.key,
                                                                    .value = x.value,
                                                                    .beta = x.beta,
                                                                    .gate = x.gate,
                                                                    .state = *x.state,
                                                                    .state_indices = *x.state_indices,
                                                                    .cu_seqlens = x.cu_seqlens,
                                                                    .scale = x.scale,
                                                                    .use_qk_l2norm = x.use_qk_l2norm,
                                                                    .checkpoint_every = x.checkpoint_every,
                                                                    .deterministic = x.deterministic,
                                                                    .out = x.out});
        result.final_state = x.state;
    } else {
        std::tie(result.final_state, checkpoints) = call<ChunkedForward, gdn::run_dense>(x);
    }
    if (!x.output_final_state) result.final_state.reset();
    if (x.checkpoint_every != 0) result.checkpoints = checkpoints;
    return result;
}

}  // namespace gdn_cuda
