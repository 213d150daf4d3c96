// chunked_forward: prefill with dense states or a state pool.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/gdn.hpp>
#include <gdn_cuda/kernels/gdn/chunk_common.cuh>
#include <limits>

#include "../../operators/operator.hpp"
#include "chunk_inputs.hpp"
#include "move_states.hpp"
#include "split_sequences.hpp"

namespace gdn_cuda::gdn {
namespace {

// chunked_forward with a state pool. The pool and its slots hide the members of the same names, which are optional there.
struct ChunkedForwardPool : ChunkedForward {
    static constexpr const char* name = "chunked_forward_pool";
    Written state;
    Given state_indices;

    GDN_FIELDS(query, key, value, beta, gate, state, state_indices, cu_seqlens, scale, use_qk_l2norm, checkpoint_every,
               checkpoint_offsets, deterministic, gates, bound, has_initial_state, write_indices, update_state, checkpoints,
               states_before, state_scales, out)
};

// The checkpoints of a call, or an empty tensor: those of packed sequences in sequence order, in as many rows as their tokens
// allow at most, since the exact count would need cu_seqlens from the device; unused ones are zero.
Tensor add_checkpoints(Prepared& prepared, const Tensor& like, int64_t checkpoint_every, DType type) {
    const Sequences& sequences = prepared.sequences;
    GdnCall& args = prepared.args;
    if (checkpoint_every == 0) return new_states(like, {0}, sequences, type);
    const int64_t each = sequences.tokens / checkpoint_every;
    Tensor checkpoints = new_states(like, {sequences.packed() ? each : sequences.count * each}, sequences, type);
    if (sequences.packed() || args.slots.data != nullptr) torch::stable::zero_(checkpoints);
    args.steps = contiguous_states(memory_of(checkpoints), sequences, type, sequences.packed() ? 0 : each);
    args.step_index = sequences.packed() ? GdnCall::packed : GdnCall::by_sequence;
    args.step_interval = static_cast<int>(checkpoint_every);
    return checkpoints;
}

// The caller's buffers for checkpoints and the states before blocks of tokens.
struct StateRows {
    RecurrentStates checkpoints{}, before{};
    int64_t checkpoint_rows = 0, before_rows = 0;
};

// Runs a prepared call whose states go to where the caller wants them; returns its checkpoints, of `checkpoint_type`.
Tensor run_chunked(Prepared& prepared, const auto& x, const StateRows& rows, DType checkpoint_type) {
    const DeviceScope scope(prepared.sequences.query.device_index);
    const Target target = target_of(ChunkedForward::name, prepared.sequences.query);
    clear_without_sequences(prepared.sequences, x.out);
    ChunkInputs inputs(prepared, x.out, target);
    inputs.close_gaps(x.query, x.key, x.value);
    inputs.fit_channel_gates(x.gate);
    const bool by_any = !prepared.sequences.plain();
    const bool moves = by_any ? prepared.state_type == DType::i8 : moves_states(prepared);
    const Tensor checkpoints = add_checkpoints(prepared, x.out, x.checkpoint_every,
                                               moves    ? DType::f32
                                               : by_any ? checkpoint_type
                                                        : prepared.state_type);
    const GdnCall call = prepared.args;
    const RecurrentStates own = contiguous_states(memory_of(checkpoints), prepared.sequences,
                                                  moves    ? DType::f32
                                                  : by_any ? checkpoint_type
                                                           : prepared.state_type);
    const MoveStatesArgs before{.call = call,
                                .from = own,
                                .to = rows.before,
                                .rows = rows.before_rows,
                                .checkpoints = checkpoints.size(0),
                                .block_tokens = static_cast<int>(x.checkpoint_every)};
    MoveStates::run(StatesMove::first_before, before, target);  // before a pool is written
    if (moves) inputs.gather_states();
    if (by_any)
        run_by_token(prepared, ChunkedForward::name);
    else
        run_by_chunk(prepared, inputs, x.deterministic, x.out, ChunkedForward::name, target);
    if (moves) inputs.scatter_states();
    MoveStates::run(StatesMove::other_before, before, target);
    const MoveStatesArgs copied{
        .call = call, .from = own, .to = rows.checkpoints, .rows = std::min(rows.checkpoint_rows, checkpoints.size(0))};
    MoveStates::run(StatesMove::copy, copied, target);
    return checkpoints;
}

struct PreparedChunked : Prepared {
    StateRows rows;
};

// For both operators; `indices`: of slots, or none.
PreparedChunked prepare_chunked(const auto& x, const OptionalTensor& indices, const OptionalTensor& write_indices,
                                bool update_state, const OptionalTensor& final_state) {
    const Checks check{ChunkedForward::name};
    const Sequences sequences = check_sequences(check, x.query, x.key, x.value, view_of(x.cu_seqlens), QueryHeads::any);
    PreparedChunked prepared{prepare(check, sequences, x.out, x.scale, x.use_qk_l2norm), {}};
    GdnCall& args = prepared.args;
    const GateTensors gates = check_gates(check, prepared, x.beta, x.gate, x.gates, x.bound);
    const int64_t every = x.checkpoint_every;
    GDN_REQUIRE(check, every >= 0 && every % kChunk == 0 && every <= std::numeric_limits<int>::max(), "checkpoint_every",
                fmt::format("0 or a multiple of {}", kChunk), fmt::format("{}", every));

    const View state = view_of(x.state), slots = view_of(indices), has_initial = view_of(x.has_initial_state);
    const View last = view_of(final_state), write_slots = view_of(write_indices);
    const View scales = slots.defined() ? view_of(x.state_scales) : View();
    if (slots.defined())
        args.initial = check_coded_initial(check, prepared, "state", state, "state_scales", scales);
    else if (state.defined())
        args.initial = check_initial(check, prepared, "state", state, 4);
    check_has_initial(check, prepared, has_initial);
    if (slots.defined()) {
        check.distinct("state", state);
        check_indices(check, "state_indices", slots, sequences.batch());  // any stride: it may be a column of a block table
        check.shape("state_indices", slots, {sequences.count}, "(sequences,)");
        const SlotTensors pool{.pool_name = "state", .slots_name = "state_indices", .pool = state, .slots = slots};
        set_slots(check, args, pool);
        if (update_state) args.last = args.initial;
        if (write_slots.defined()) check_write_indices(check, prepared, write_slots, pool, update_state);
    } else if (state.defined()) {
        GDN_REQUIRE(check, state.size(0) == sequences.count, "state",
                    fmt::format("a state for each of {} sequences", sequences.count), shape_text(state));
    }
    if (last.defined()) args.last = check_final_state(check, prepared, last);
    const View checkpoints = view_of(x.checkpoints), before = view_of(x.states_before), offsets = view_of(x.checkpoint_offsets);
    if (offsets.defined()) {
        GDN_REQUIRE(check, every == 0, "checkpoint_offsets", "None with checkpoint_every", "a tensor");
        check_checkpoint_offsets(check, offsets, sequences.cu_seqlens, sequences.batch());
        GDN_REQUIRE(check, sequences.packed() || sequences.count * sequences.tokens <= std::numeric_limits<int>::max(),
                    "checkpoint_offsets", "None with more than 2147483647 tokens in all", "a tensor");
        GDN_REQUIRE(check, !checkpoints.defined() || (checkpoints.rank == 4 && checkpoints.size(0) == sequences.count),
                    "checkpoints", fmt::format("a row for each of {} sequences", sequences.count), shape_text(checkpoints));
    }
    const auto check_rows = [&](const char* argument, const View& rows, RecurrentStates& states, int64_t& count) {
        if (!rows.defined()) return;
        const bool may_be_offsets = &rows == &checkpoints;
        GDN_REQUIRE(check, every > 0 || (may_be_offsets && offsets.defined()), argument,
                    may_be_offsets ? "None without checkpoint_every and checkpoint_offsets" : "None without checkpoint_every",
                    "a tensor");
        Prepared alone{.sequences = sequences};
        states = check_states(check, alone, argument, rows, 4);
        check.distinct(argument, rows);
        count = rows.size(0);
    };
    check_rows("checkpoints", checkpoints, prepared.rows.checkpoints, prepared.rows.checkpoint_rows);
    check_rows("states_before", before, prepared.rows.before, prepared.rows.before_rows);
    const View none;
    check_apart(check, sequences, gates,
                {{"state", slots.defined() && update_state ? state : none},
                 {"state_scales", update_state ? scales : none},
                 {"final_state", last},
                 {"checkpoints", checkpoints},
                 {"states_before", before},
                 {"out", prepared.output}},
                {{"state", slots.defined() && update_state ? none : state},
                 {"state_scales", update_state ? none : scales},
                 {"state_indices", slots},
                 {"write_indices", write_slots},
                 {"checkpoint_offsets", offsets},
                 {"has_initial_state", has_initial}});
    return prepared;
}

PreparedChunked prepare_dense(const ChunkedForward& x) {
    const Checks check{x.name};
    const auto is_known = [&](ScalarType type) {
        return type == ScalarType::Float || type == ScalarType::BFloat16 || type == ScalarType::Half ||
               (type == ScalarType::Double && View(x.query).dtype == torch_numbers.f64);
    };
    const bool known = !x.state_dtype || is_known(*x.state_dtype);
    GDN_REQUIRE(check, known, "state_dtype", "float32, bfloat16, float16 or None, or float64 with a float64 query",
                known ? "" : dtype_name(*x.state_dtype));
    GDN_REQUIRE(check, x.output_final_state || !x.final_state, "final_state", "None with output_final_state=False", "a tensor");
    GDN_REQUIRE(check, !x.state_dtype || !x.final_state, "state_dtype", "None with final_state, whose dtype counts",
                dtype_name(*x.state_dtype));
    return prepare_chunked(x, std::nullopt, std::nullopt, true, x.final_state);
}

PreparedChunked prepare_pool(const ChunkedForwardPool& x) {
    return prepare_chunked(x, x.state_indices, x.write_indices, x.update_state, std::nullopt);
}

// A tensor of a padded batch as one of packed sequences; the same memory, where they follow each other in it.
Tensor as_packed(const Sequences& sequences, const Tensor& tensor) {
    return sequences.packed() ? tensor : torch::stable::flatten(tensor, 0, 1);
}

// A call that reports the state after some tokens of each sequence: one call computes the tokens up to there, and another one
// those after them, from dense fp32 states. Returns the rows, of `type`, if the caller has none.
Tensor run_parts(PreparedChunked& whole, const ChunkedForward& x, DType type) {
    const Sequences& sequences = whole.sequences;
    const int64_t count = sequences.count;
    const Tensor rows = new_states(x.out, {x.checkpoints ? 0 : count}, sequences, type);
    const DeviceScope scope(sequences.query.device_index);
    const Target target = target_of(ChunkedForward::name, sequences.query);
    clear_without_sequences(sequences, x.out);
    if (count == 0) return rows;
    const Tensor states = new_states(x.out, {count}, sequences, DType::f32);
    const RecurrentStates dense = contiguous_states(memory_of(states), sequences, DType::f32);
    const auto indices = [&](int64_t elements) { return new_tensor(x.out, {elements}, ScalarType::Long); };
    const Tensor slots = indices(count), parts = indices(2 * count + 1), firsts = indices(2 * count),
                 seconds = indices(2 * count);
    const auto memory = [](const Tensor& tensor) { return static_cast<i64*>(memory_of(tensor)); };
    const Tagged offsets = tagged(View(*x.checkpoint_offsets));
    const GdnCall& call = whole.args;
    MoveStatesArgs move{.call = call, .to = dense, .rows = count, .dense_slots = memory(slots)};
    MoveStates::run(StatesMove::gather, move, target);
    SplitSequences::run({.cu_seqlens = call.cu_seqlens,
                         .offsets = offsets,
                         .sequences = call.sequences,
                         .tokens = call.tokens,
                         .slots = memory(slots),
                         .parts = memory(parts),
                         .firsts = memory(firsts),
                         .seconds = memory(seconds)},
                        target);
    ChunkedForwardPool part{x, states, firsts};
    part.query = as_packed(sequences, x.query);
    part.key = as_packed(sequences, x.key);
    part.value = as_packed(sequences, x.value);
    if (x.beta) part.beta = as_packed(sequences, *x.beta);
    if (x.gate) part.gate = as_packed(sequences, *x.gate);
    part.out.emplace(as_packed(sequences, x.out));
    part.cu_seqlens = parts;
    part.has_initial_state = part.write_indices = part.checkpoint_offsets = {};
    part.update_state = true;
    part.checkpoints = part.states_before = part.state_scales = {};
    PreparedChunked prepared = prepare_pool(part);
    run_chunked(prepared, part, {}, DType::f32);
    move.from = dense;
    move.to = x.checkpoints ? whole.rows.checkpoints : contiguous_states(memory_of(rows), sequences, type);
    move.offsets = offsets;
    MoveStates::run(StatesMove::at_offsets, move, target);
    part.state_indices = seconds;
    prepared = prepare_pool(part);
    prepared.args.keeps_skipped = true;
    run_chunked(prepared, part, {}, DType::f32);
    if (call.last.data != nullptr) MoveStates::run(StatesMove::scatter, move, target);
    if (memory_of(part.out) != memory_of(x.out)) {
        Tensor out = x.out;
        torch::stable::copy_(out,
                             torch::stable::reshape(part.out, std::vector<int64_t>(out.sizes().begin(), out.sizes().end())));
    }
    return rows;
}

DType dtype_from(ScalarType type) {
    return type == ScalarType::BFloat16 ? DType::bf16 : type == ScalarType::Half ? DType::f16 : DType::f32;
}

// (final state, or empty; checkpoints, or empty)
std::tuple<Tensor, Tensor> run_dense(const ChunkedForward& x) {
    PreparedChunked prepared = prepare_dense(x);
    const Sequences& sequences = prepared.sequences;
    GdnCall& args = prepared.args;
    const DType wanted = x.state_dtype ? dtype_from(*x.state_dtype) : prepared.state_type;
    const bool any_type =
        !sequences.plain() || moves_states(prepared) || x.checkpoint_offsets;  // kernels that write a dtype of their own
    OptionalTensor widened = {};  // a bf16 state with fp32 results: widening is exact, and the kernel has one state type
    if (!any_type && wanted == DType::f32 && prepared.state_type == DType::bf16) {
        widened = torch::stable::to(torch::stable::contiguous(*x.state), ScalarType::Float);
        prepared.state_type = DType::f32;
        args.initial = contiguous_states(memory_of(*widened), sequences, DType::f32);
        prepared.aligned = sequences.query.aligned16() && sequences.key.aligned16();
    }
    const DType type = any_type ? wanted : prepared.state_type;
    const bool is_new = x.output_final_state && !x.final_state;
    const Tensor final_state = new_states(x.out, {is_new ? sequences.count : 0}, sequences, type);
    if (is_new) args.last = contiguous_states(memory_of(final_state), sequences, type);
    const Tensor checkpoints =
        x.checkpoint_offsets ? run_parts(prepared, x, wanted) : run_chunked(prepared, x, prepared.rows, wanted);
    return {as_dtype(final_state, wanted), as_dtype(checkpoints, wanted)};
}

// Returns the checkpoints.
Tensor run_pool(const ChunkedForwardPool& x) {
    PreparedChunked prepared = prepare_pool(x);
    const DType pool = prepared.state_type == DType::i8 ? DType::f32 : prepared.state_type;  // the checkpoints' dtype
    if (x.checkpoint_offsets) return run_parts(prepared, x, pool);
    return as_dtype(run_chunked(prepared, x, prepared.rows, pool), pool);
}

GDN_REGISTER(ChunkedForward, prepare_dense, run_dense)
GDN_REGISTER(ChunkedForwardPool, prepare_pool, run_pool)

}  // namespace
}  // namespace gdn_cuda::gdn

namespace gdn_cuda {

ChunkedResult chunked_forward(const ChunkedForward& x) {
    require_given(x.name, x);
    if (!x.out) return chunked_forward(gdn::with_new_output(x));
    ChunkedResult result{.output = x.out, .final_state = {}, .checkpoints = {}};
    OptionalTensor checkpoints = {};
    if (x.state_indices) {
        if (!x.state) fail(x.name, "state", "a pool (slots, Hv, dv, dk) with state_indices", "none");
        if (x.state_dtype && *x.state_dtype != x.state->scalar_type())
            fail(x.name, "state_dtype", "none, or the pool's dtype, with state_indices", dtype_name(*x.state_dtype));
        if (x.final_state) fail(x.name, "final_state", "none with state_indices", "a tensor");
        checkpoints = call<gdn::ChunkedForwardPool, gdn::run_pool>({x, *x.state, *x.state_indices});
        result.final_state = x.state;
    } else {
        if (x.write_indices) fail(x.name, "write_indices", "none without state_indices", "a tensor");
        if (!x.update_state) fail(x.name, "update_state", "true without state_indices", "false");
        if (x.state_scales) fail(x.name, "state_scales", "none without state_indices", "a tensor");
        std::tie(result.final_state, checkpoints) = call<ChunkedForward, gdn::run_dense>(x);
        if (x.final_state) result.final_state = *x.final_state;
    }
    if (!x.output_final_state) result.final_state.reset();
    if (x.checkpoint_every != 0 || x.checkpoint_offsets) result.checkpoints = x.checkpoints ? *x.checkpoints : checkpoints;
    return result;
}

}  // namespace gdn_cuda
