// chunked_forward: prefill, with dense states or a pool, and the choice of its kernel.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdlib>
#include <limits>

#include "../jit_kernels/impls/gdn/prefill.hpp"
#include "../jit_kernels/impls/gdn/prefill_mma.hpp"
#include "gdn.hpp"
#include "gdn_prepared.hpp"
#include "register.hpp"

namespace gdn_cuda::gdn {
namespace {

using torch::headeronly::ScalarType;

// Whole chunks on the tensor cores where the device and the tensors allow; else token by token. The choice looks at nothing
// that what a sequence is packed with could change. `out`: any tensor of the call.
void run_chunked(const Prepared& prepared, bool deterministic, const Tensor& out) {
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
    OptionalTensor counts, workspace;
    switch (prefill_kernel(rows_fit, near(args.gate) && near(args.beta), args.dk, device.capability, jit::env().prefill)) {
        case PrefillKernel::wgmma: {
            const PrefillChoice choice = Prefill::choice(problem, target);
            if (choice.workspace() > 0) {
                workspace = torch::stable::new_empty(out, {choice.workspace()}, ScalarType::Float);
                tensors.workspace = static_cast<float*>(workspace->data_ptr());
            }
            if (const i64 words = choice.counts(tensors.in_place); words > 0) {
                counts = torch::stable::new_empty(out, {words}, ScalarType::Int);
                torch::stable::zero_(*counts);
                tensors.counts = static_cast<unsigned*>(counts->data_ptr());
            }
            return Prefill::run(problem, choice, args, tensors, target);
        }
        case PrefillKernel::mma:
            return PrefillMma::run(problem, args, target);
        case PrefillKernel::recurrent:
            return run_by_token(prepared, "chunked_forward");
    }
}

Prepared prepare_chunked(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                         const OptionalTensor& state, const OptionalTensor& state_indices, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                         bool use_qk_l2norm, int64_t checkpoint_every, const Tensor& out) {
    const Checks check{"chunked_forward"};
    const Sequences sequences = check_sequences(check, query, key, value, view_of(cu_seqlens));
    Prepared prepared = prepare(check, sequences, out, scale, use_qk_l2norm);
    RecurrentArgs& args = prepared.args;
    const View beta_view(beta), gate_view(gate), hints = view_of(chunk_indices), counts = view_of(cu_chunks);
    check_gates(check, beta_view, gate_view, sequences, args.beta, args.gate);
    check_chunk_hints(check, hints, counts, sequences);
    GDN_REQUIRE(check,
                checkpoint_every >= 0 && checkpoint_every % kChunk == 0 && checkpoint_every <= std::numeric_limits<int>::max(),
                "checkpoint_every", fmt::format("0 or a multiple of {}", kChunk), fmt::format("{}", checkpoint_every));

    const View state_view = view_of(state), slots = view_of(state_indices);
    if (state_view.defined()) {
        prepared.state_type = check.dtype("state", state_view, {DType::f32, DType::bf16});
        args.initial = check_states(check, prepared, "state", state_view, 4);
    }
    if (slots.defined()) {
        check.distinct("state", state_view);
        check_per_sequence(check, "state_indices", slots, sequences);
        set_slots(check, prepared, slots, "state", state_view.size(0));
        args.last = args.initial;
    } else if (state_view.defined()) {
        GDN_REQUIRE(check, state_view.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(state_view));
    }
    const View none;
    check.apart({{"state", slots.defined() ? state_view : none}, {"out", prepared.output}},
                {{"query", sequences.query},
                 {"key", sequences.key},
                 {"value", sequences.value},
                 {"beta", beta_view},
                 {"gate", gate_view},
                 {"state", slots.defined() ? none : state_view},
                 {"state_indices", slots},
                 {"cu_seqlens", sequences.cu_seqlens},
                 {"chunk_indices", hints},
                 {"cu_chunks", counts}});
    return prepared;
}

Prepared prepare_dense(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                       const OptionalTensor& state, const OptionalTensor& cu_seqlens, const OptionalTensor& chunk_indices,
                       const OptionalTensor& cu_chunks, std::optional<double> scale, bool use_qk_l2norm,
                       bool /*output_final_state*/, std::optional<ScalarType> state_dtype, int64_t checkpoint_every,
                       bool /*deterministic*/, const Tensor& out) {
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
                      bool use_qk_l2norm, int64_t checkpoint_every, bool /*deterministic*/, const Tensor& out) {
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
                                           bool deterministic, const Tensor& out) {
    Prepared prepared = prepare_dense(query, key, value, beta, gate, state, cu_seqlens, chunk_indices, cu_chunks, scale,
                                      use_qk_l2norm, output_final_state, state_dtype, checkpoint_every, deterministic, out);
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
    run_chunked(prepared, deterministic, out);
    const bool narrow = wanted == ScalarType::BFloat16 && prepared.state_type == DType::f32;
    if (!narrow) return {final_state, checkpoints};
    return {torch::stable::to(final_state, wanted), torch::stable::to(checkpoints, wanted)};
}

Tensor chunked_forward_pool(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& beta, const Tensor& gate,
                            const Tensor& state_pool, const Tensor& state_indices, const OptionalTensor& cu_seqlens,
                            const OptionalTensor& chunk_indices, const OptionalTensor& cu_chunks, std::optional<double> scale,
                            bool use_qk_l2norm, int64_t checkpoint_every, bool deterministic, const Tensor& out) {
    Prepared prepared = prepare_pool(query, key, value, beta, gate, state_pool, state_indices, cu_seqlens, chunk_indices,
                                     cu_chunks, scale, use_qk_l2norm, checkpoint_every, deterministic, out);
    const Tensor checkpoints = add_checkpoints(prepared, out, checkpoint_every);
    run_chunked(prepared, deterministic, out);
    return checkpoints;
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "chunked_forward",
                   "Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor? state, Tensor? cu_seqlens, "
                   "Tensor? chunk_indices, Tensor? cu_chunks, float? scale, bool use_qk_l2norm, bool output_final_state, "
                   "ScalarType? state_dtype, int checkpoint_every, bool deterministic, Tensor(a!) out",
                   "(Tensor, Tensor)");
    define_checked(m, "chunked_forward_pool",
                   "Tensor query, Tensor key, Tensor value, Tensor beta, Tensor gate, Tensor(a!) state, Tensor state_indices, "
                   "Tensor? cu_seqlens, Tensor? chunk_indices, Tensor? cu_chunks, float? scale, bool use_qk_l2norm, "
                   "int checkpoint_every, bool deterministic, Tensor(b!) out",
                   "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("chunked_forward", TORCH_BOX(&chunked_forward));
    m.impl("chunked_forward_pool", TORCH_BOX(&chunked_forward_pool));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_chunked_forward", TORCH_BOX(&OnlyCheck<prepare_dense>::run));
    m.impl("validate_chunked_forward_pool", TORCH_BOX(&OnlyCheck<prepare_pool>::run));
}

}  // namespace gdn_cuda::gdn
