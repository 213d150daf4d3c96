// selective_state_update: one or several tokens of a selective scan, with states in slots of a pool.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/scan.hpp>
#include <limits>

#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "../common/state_scales.hpp"
#include "selective_step.hpp"

namespace gdn_cuda::scan {
namespace {

struct PreparedStep {
    View state;
    bool by_tokens = false;  // scan/selective_step_tokens runs it
    SelectiveStepProblem problem{};
    SelectiveStepArgs args{};
};

// The ranks determine the layout: that of `state` whether there are heads, then that of x whether there are tokens, and those
// of B and C, each by itself, whether there are groups.
struct Layout {
    Checks check;
    View state, x;
    bool heads, tokens, packed;  // packed: tokens of all sequences in the first dimension

    int64_t head_count() const { return heads ? state.size(1) : 1; }
    int64_t token_count() const { return tokens ? x.size(1) : 1; }
    // Strides in bytes; `middle` is the stride of heads or groups, `last` that of channels or columns.
    template <class Tensor>
    Tensor with_strides(const View& view, int64_t middle, int64_t last) const {
        const int64_t bytes = bytes_of(*dtype_of(view));
        return {tagged(view), view.stride(0) * bytes, view.stride(token_count() > 1 ? 1 : 0) * bytes, middle * bytes,
                last * bytes};
    }

    void shape(const char* argument, const View& view, const View& expected, const char* words) const {
        GDN_REQUIRE(check, view.rank == expected.rank && std::equal(view.sizes, view.sizes + view.rank, expected.sizes),
                    argument, fmt::format("the shape of {} {}", words, shape_text(expected)), shape_text(view));
    }
    void common(const char* argument, const View& view, std::initializer_list<DType> types) const {
        check.dtype(argument, view, types);
        check.device(argument, view, state, "state");
    }
    SelectiveStepArgs::ByRow by_row(const char* argument, const View& view) const {
        if (!view.defined()) return {};
        shape(argument, view, x, "x");
        common(argument, view, {DType::f32, DType::bf16, DType::f16});
        return with_strides<SelectiveStepArgs::ByRow>(view, heads ? view.stride(-2) : 0, view.stride(-1));
    }
    // Steps may have one value for a head.
    SelectiveStepArgs::ByRow steps(const char* argument, const View& view) const {
        if (!view.defined() || !heads || view.rank != x.rank - 1) return by_row(argument, view);
        View without_channels = x;
        --without_channels.rank;
        shape(argument, view, without_channels, "x without its channels");
        common(argument, view, {DType::f32, DType::bf16, DType::f16});
        return with_strides<SelectiveStepArgs::ByRow>(view, view.stride(-1), 0);
    }
    SelectiveStepArgs::PerRow per_row(const char* argument, const View& view) const {
        if (!view.defined()) return {};
        const bool per_head = heads && view.rank == 1;
        if (per_head)
            check.shape(argument, view, {state.size(1)}, "(heads,)");
        else if (heads)
            check.shape(argument, view, {state.size(1), state.size(2)}, "(heads, dim)");
        else
            check.shape(argument, view, {state.size(1)}, "(dim,)");
        common(argument, view, {DType::f32, DType::bf16, DType::f16});
        const int64_t bytes = bytes_of(*dtype_of(view));
        return {tagged(view), (heads ? view.stride(0) : 0) * bytes, (per_head ? 0 : view.stride(-1)) * bytes};
    }
    void set_A(SelectiveStepArgs& args, const View& A) const {
        const bool per_head = heads && A.rank == 1;
        if (per_head)
            check.shape("A", A, {state.size(1)}, "(heads,)");
        else if (heads)
            check.shape("A", A, {state.size(1), state.size(2), state.size(3)}, "(heads, dim, N)");
        else
            check.shape("A", A, {state.size(1), state.size(2)}, "(dim, N)");
        common("A", A, {is_complex(*dtype_of(state)) ? DType::c64 : DType::f32});
        args.A = A.data;
        args.A_head = heads ? A.stride(0) : 0;
        args.A_d = per_head ? 0 : A.stride(-2);
        args.A_n = per_head ? 0 : A.stride(-1);
        args.tied = args.A_n == 0;
        args.A_vectors = args.A_n == 1 && A.aligned16();
    }
    SelectiveStepArgs::ByColumn by_column(const char* argument, const View& view, int64_t& groups) const {
        const int lead = tokens ? 2 : 1;
        const bool grouped = view.rank == lead + 2;
        const char* const words = tokens ? "(B, T, N) or (B, T, G, N)" : "(B, N) or (B, G, N)";
        const bool fits = (grouped || view.rank == lead + 1) && view.size(0) == x.size(0) &&
                          (!tokens || view.size(1) == x.size(1)) && view.size(-1) == state.size(-1);
        GDN_REQUIRE(check, fits, argument,
                    fmt::format("{} to match x {} and state {}", words, shape_text(x), shape_text(state)), shape_text(view));
        if (is_complex(*dtype_of(state)))
            common(argument, view, {DType::c64});
        else
            common(argument, view, {DType::f32, DType::bf16, DType::f16});
        groups = grouped ? view.size(-2) : 1;
        const int64_t divided = state.size(1);
        GDN_REQUIRE(check, groups >= 1 && divided % groups == 0, argument,
                    fmt::format("a number of groups that divides the {} {}", divided, heads ? "heads" : "channels"),
                    fmt::format("{}", groups));
        return with_strides<SelectiveStepArgs::ByColumn>(view, grouped ? view.stride(-2) : 0, view.stride(-1));
    }
};

// Bytes from the first to the last element of a tensor, inclusive.
i64 bytes_spanned(const View& view) {
    i64 last = 0;
    for (int d = 0; d < view.rank; ++d) last += (view.size(d) - 1) * view.stride(d);
    return (last + 1) * bytes_of(*dtype_of(view));
}

// Slots for the state after every token, other than those that are read.
void check_written_of_tokens(const Checks& check, const View& written, const Batch& batch) {
    check_indices(check, "write_indices", written, batch);
    GDN_REQUIRE(check,
                written.rank == 2 && written.size(0) == batch.sequences && written.size(1) >= (batch.packed ? 1 : batch.tokens),
                "write_indices", fmt::format("({}, T), a slot for each of {} tokens", batch.sequences, batch.tokens),
                shape_text(written));
}

// The slots of the pool as what a call writes; `slots`: (sequences,) or (sequences, tokens).
SelectiveStepArgs::States rows_of_pool(const Checks& check, const SelectiveStepArgs& args, const View& slots) {
    const bool by_token = slots.rank == 2;
    return {.states = args.pool,
            .row = args.pool_slot,
            .token = 0,
            .rows = tagged(slots),
            .rows_sequence = slots.stride(0),
            .rows_token = by_token ? slots.stride(1) : 0,
            .null_row = args.null_slot,
            .row_count = args.slot_count,
            .limit = by_token ? check.count("write_indices", "columns", slots.size(1)) : std::numeric_limits<int>::max()};
}

void check_states(const Checks& check, const char* argument, const View& states, const View& as) {
    const int tail = as.rank - 1;
    GDN_REQUIRE(check, std::equal(as.sizes + 1, as.sizes + as.rank, states.sizes + states.rank - tail), argument,
                fmt::format("states like those of state {}", shape_text(as)), shape_text(states));
    check.device(argument, states, as, "state");
    GDN_REQUIRE(check, states.contiguous_tail(tail), argument, "contiguous states, at any stride between slots",
                stride_text(states));
    check.distinct(argument, states);
}

void check_step_states(const Checks& check, const View& steps, const View& state, DType type) {
    if (!steps.defined()) return;
    check.dtype("step_states", steps, {type});
    check_states(check, "step_states", steps, state);
}

// What calls with int8 states are: one token of Mamba-2, from and to slots of the pool.
void check_coded(const Checks& check, const SelectiveStateUpdate& x, const View& state, const SelectiveStepArgs& args) {
    const int64_t states = state.size(-1);
    GDN_REQUIRE(check, state.rank == 4, "state", "(B, heads, dim, N), as it is int8", shape_text(state));
    GDN_REQUIRE(check, states == 64 || states == 128 || states == 256, "state", "64, 128 or 256 states, as it is int8",
                shape_text(state));
    GDN_REQUIRE(check, args.tied, "A", "one value for all states of a channel, as state is int8", shape_text(View(x.A)));
    GDN_REQUIRE(check, x.discretization == Discretization::mamba || x.discretization == Discretization::dirac, "discretization",
                "'mamba' or 'dirac', as state is int8",
                fmt::format("'{}'", kDiscretizationNames[static_cast<size_t>(x.discretization)]));
    GDN_REQUIRE(check, args.tokens == 1, "x", "one token of each sequence, as state is int8", shape_text(View(x.x)));
    GDN_REQUIRE(check, !x.state_batch_indices || View(*x.state_batch_indices).rank == 1, "state_batch_indices",
                "(B,), as state is int8", shape_text(View(*x.state_batch_indices)));
    for (const auto& [argument, given] : {std::pair<const char*, bool>{kAcceptedTokens, accepted_of(x.verify).defined()},
                                          {"step_states", bool(x.steps.step_states)},
                                          {"parents", bool(x.parents)}})
        GDN_REQUIRE(check, !given, argument, "None, as state is int8", "a tensor");
}

// Which states the call stores, and where.
void keep_states(const Checks& check, PreparedStep& prepared, const SlotTensors& x, const View& written, bool update_state) {
    SelectiveStepArgs& args = prepared.args;
    const View& steps = x.steps;
    args.kept = steps.defined() || x.by_token() ? SelectiveStepArgs::every
                : update_state                  ? SelectiveStepArgs::last
                                                : SelectiveStepArgs::none;
    if (steps.defined()) {
        args.to = {.states = steps.data,
                   .row = steps.stride(0),
                   .token = steps.stride(1),
                   .rows = tagged(x.step_slots),
                   .rows_sequence = x.step_slots.stride(0),
                   .rows_token = 0,
                   .null_row = -1,
                   .row_count = check.count("step_states", "rows", steps.size(0)),
                   .limit = check.count("step_states", "tokens", steps.size(1))};
        if (written.defined()) args.last_to = rows_of_pool(check, args, written);
    } else if (written.defined() || x.by_token()) {
        args.to = rows_of_pool(check, args, written.defined() ? written : x.slots);
    }
    if (prepared.by_tokens && args.kept == SelectiveStepArgs::last) {
        args.kept = SelectiveStepArgs::none;
        args.last_to = written.defined() ? args.to : SelectiveStepArgs::States{.states = args.pool};
    }
}

PreparedStep prepare_step(const SelectiveStateUpdate& arguments) {
    const Checks check{arguments.name};
    const View state(arguments.state), x(arguments.x);
    GDN_REQUIRE(check, state.rank == 3 || state.rank == 4, "state", "(B, dim, N), or (B, heads, dim, N)", shape_text(state));
    const bool heads = state.rank == 4;
    GDN_REQUIRE(
        check, x.rank == state.rank - 1 || x.rank == state.rank, "x",
        heads ? "(B, heads, dim) or (B, T, heads, dim), as state has heads" : "(B, dim) or (B, T, dim), as state has no heads",
        shape_text(x));
    const View cu_seqlens = view_of(arguments.cu_seqlens);
    const bool packed = cu_seqlens.defined();
    const bool coded = dtype_of(state) == DType::i8;
    GDN_REQUIRE(check, !packed || !coded, "cu_seqlens", "None, as state is int8", "a tensor");
    GDN_REQUIRE(check, !packed || x.rank == state.rank - 1, "x",
                fmt::format("rank {} with cu_seqlens: packed tokens", state.rank - 1), shape_text(x));
    const Layout layout{check, state, x, heads, x.rank == state.rank, packed};
    const DType type = check.dtype("state", state, {DType::f32, DType::bf16, DType::f16, DType::c64, DType::i8});
    const View scales = view_of(arguments.state_scales);
    const bool complex = is_complex(type);
    GDN_REQUIRE(check, std::equal(state.sizes + 1, state.sizes + state.rank - 1, x.sizes + x.rank - (state.rank - 2)), "x",
                heads ? fmt::format("(…, heads={}, dim={}) to match state", state.size(1), state.size(2))
                      : fmt::format("(…, dim={}) to match state", state.size(1)),
                shape_text(x));
    GDN_REQUIRE(check, state.size(-1) >= 1 && state.size(-1) <= kMaxStates, "state", fmt::format("N from 1 to {}", kMaxStates),
                shape_text(state));
    const bool is_real = arguments.discretization == Discretization::s7 || arguments.discretization == Discretization::rglru;
    const char* const discretization = names_of(Discretization{})[static_cast<size_t>(arguments.discretization)];
    GDN_REQUIRE(check, !(complex && is_real), "discretization", "'mamba', 'zoh', 'bilinear' or 'dirac' for a complex state",
                fmt::format("'{}'", discretization));
    GDN_REQUIRE(check, !(arguments.delta_a && is_real), "delta_a", fmt::format("None with '{}'", discretization), "a tensor");

    PreparedStep prepared{.state = state};
    SelectiveStepArgs& args = prepared.args;
    const View dt(arguments.dt), delta_a = view_of(arguments.delta_a), z = view_of(arguments.z);
    args.x = layout.by_row("x", x);
    args.delta = layout.steps("dt", dt);
    args.delta_a = layout.steps("delta_a", delta_a);
    args.z = layout.by_row("z", z);
    const View A(arguments.A), D = view_of(arguments.D), bias = view_of(arguments.dt_bias);
    layout.set_A(args, A);
    args.tokens = check.count("x", "tokens", packed ? x.size(0) : layout.token_count(), kMaxTokens);
    if (coded) check_coded(check, arguments, state, args);
    check_state_scales(check, "state", state, "state_scales", scales, 1, DType::f32, "N");
    args.scales = static_cast<float*>(scales.data), args.scales_slot = coded ? scales.stride(0) : 0;
    args.D = layout.per_row("D", D);
    args.bias = layout.per_row("dt_bias", bias);
    const View B(arguments.B), C(arguments.C);
    int64_t groups = 1, groups_of_C = 1;
    args.B = layout.by_column("B", B, groups);
    args.C = layout.by_column("C", C, groups_of_C);
    const auto has_units = [&](const SelectiveStepArgs::ByColumn& x) {
        const i64 bytes = bytes_of(x.values.type), row = bytes * state.size(-1);
        return x.n == bytes && ((reinterpret_cast<i64>(x.values.data) | x.sequence | x.item | x.group | row) & 15) == 0;
    };
    args.column_units = has_units(args.B) && has_units(args.C);
    const int64_t most = std::max(groups, groups_of_C);
    check.count(groups < most ? "C" : "B", "groups", most, kMostBlocks[1]);
    GDN_REQUIRE(check, groups == groups_of_C || std::min(groups, groups_of_C) == 1, "C",
                fmt::format("one group, or the {} of B", groups), fmt::format("{}", groups_of_C));

    const View out(arguments.out);
    layout.shape("out", out, x, "x");
    layout.common("out", out, {*dtype_of(x)});
    check.distinct("out", out);
    args.out = layout.by_row("out", out);

    const int64_t rows = layout.head_count() * state.size(-2);
    args.discretization = arguments.discretization;
    args.softplus = arguments.dt_softplus;
    if (packed) check_cu_seqlens(check, cu_seqlens, x.size(0), x, "x");
    args.cu_seqlens = tagged(cu_seqlens);
    const View written = view_of(arguments.write_indices), parents = view_of(arguments.parents);
    // scan/selective_step has no packed tokens and no trees, and stores the last state or the state after every token, not
    // both.
    const bool keeps_both = arguments.steps.step_states && written.defined();
    prepared.by_tokens = packed || parents.defined() || keeps_both || (args.tokens == 0 && written.defined());
    const int64_t sequences = packed ? cu_seqlens.size(0) - 1 : x.size(0);
    args.sequences = check.count(packed ? "cu_seqlens" : "x", "sequences", sequences,
                                 prepared.by_tokens || coded ? kMostBlocks[2] : most_sequences(layout.token_count()));
    args.heads = check.count("state", "heads", layout.head_count());
    args.dim = check.count("state", "channels", state.size(-2));
    args.group_rows = check.count("state", "channels", rows) / static_cast<int>(most);
    args.columns = static_cast<int>(state.size(-1));

    const SlotTensors states =
        slot_tensors("state", "state_batch_indices", state, arguments.state_batch_indices, arguments.verify, arguments.steps);
    const View& steps = states.steps;
    const Batch batch{args.sequences, args.tokens, packed, state, "state"};
    check_states(check, "state", state, state);
    GDN_REQUIRE(check, !coded || state.aligned16(), "state", "states that start on 16 bytes, as they are int8",
                stride_text(state));
    check_slots(check, states, batch);
    args.pool = state.data;
    args.pool_slot = state.stride(0);
    args.slot_count = args.sequences;
    if (states.slots.defined()) set_slots(check, args, states);
    args.accepted = tagged(states.accepted);
    args.null_slot = check_null_slot(check, arguments.null_slot);
    check_update_state(check, arguments.update_state, states);
    if (written.defined()) {
        if (states.by_token() && !steps.defined())
            check_written_of_tokens(check, written, batch);
        else
            check_write_indices(check, written, states, arguments.update_state && !parents.defined(), batch);
    }
    if (parents.defined()) {
        check_parents(check, parents, states, batch);
        set_parents(args, parents);
    }
    check_step_states(check, steps, state, type);
    keep_states(check, prepared, states, written, arguments.update_state);
    const auto all_are = [](DType type, std::initializer_list<Tagged> tensors) {
        return std::ranges::all_of(tensors, [&](const Tagged& x) { return x.data != nullptr && x.type == type; });
    };
    args.in_place = args.kept == SelectiveStepArgs::last && args.to.rows.data == nullptr;
    args.plain = args.in_place && args.discretization == Discretization::mamba && args.column_units &&
                 args.delta_a.values.data == nullptr &&
                 all_are(DType::bf16, {args.x.values, args.delta.values, args.z.values, args.B.values, args.C.values}) &&
                 all_are(DType::f32, {args.D.values, args.bias.values});
    check.apart({{"state", state}, {"state_scales", scales}, {"step_states", steps}, {"out", out}},
                {{"x", x},
                 {"dt", dt},
                 {"A", A},
                 {"B", B},
                 {"C", C},
                 {"D", D},
                 {"z", z},
                 {"dt_bias", bias},
                 {"delta_a", delta_a},
                 {"state_batch_indices", states.slots},
                 {kAcceptedTokens, states.accepted},
                 {"step_slots", states.step_slots},
                 {"cu_seqlens", cu_seqlens},
                 {"parents", parents},
                 {"write_indices", written}});
    prepared.problem = {
        .sequences = args.sequences,
        .tokens = args.tokens,
        .groups = static_cast<int>(most),
        .group_rows = args.group_rows,
        .columns = args.columns,
        .state = type,
        .aligned = state.aligned16() && (!steps.defined() || steps.aligned16()) && args.columns * bytes_of(type) % 16 == 0,
        .near = args.kept != SelectiveStepArgs::every &&
                std::ranges::all_of(std::array{&x, &dt, &delta_a, &z, &A, &D, &bias, &B, &C, &out},
                                    [](const View* view) { return !view->defined() || bytes_spanned(*view) < i64{1} << 31; }),
        .plain = args.plain,
        .tied = args.tied && (args.discretization == Discretization::mamba || args.discretization == Discretization::dirac)};
    return prepared;
}

void run_step(const SelectiveStateUpdate& x) {
    const PreparedStep prepared = prepare_step(x);
    const DeviceScope scope(prepared.state.device_index);
    if (prepared.args.cu_seqlens.data != nullptr && prepared.args.sequences == 0) {
        Tensor out = x.out;
        torch::stable::zero_(out);
    }
    const Target target = target_of(x.name, prepared.state);
    if (prepared.by_tokens)
        SelectiveStepTokens::run(prepared.problem, prepared.args, target);
    else
        SelectiveStep::run(prepared.problem, prepared.args, target);
}

GDN_REGISTER(SelectiveStateUpdate, prepare_step, run_step)

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

Tensor selective_state_update(const SelectiveStateUpdate& x) {
    require_given(x.name, x);
    if (!x.out) return selective_state_update(with_output_like(x.x, x));
    if (x.A->scalar_type() != ScalarType::ComplexFloat) {
        call<SelectiveStateUpdate, scan::run_step>(x);
    } else {
        SelectiveStateUpdate arguments = x;  // torch's conjugate bit, which kernels ignore, is resolved
        for (Given* const each : {&arguments.A, &arguments.B, &arguments.C}) each->emplace(plain_on_cuda(*each));
        call<SelectiveStateUpdate, scan::run_step>(arguments);
    }
    return x.out;
}

}  // namespace gdn_cuda
