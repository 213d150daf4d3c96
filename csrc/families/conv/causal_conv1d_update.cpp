// causal_conv1d_update: one or a few tokens of every sequence through a causal convolution, states in slots of a pool.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/conv.hpp>

#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "causal_conv_checks.hpp"
#include "causal_step.hpp"

namespace gdn_cuda::conv {
namespace {

struct PreparedUpdate {
    View x;
    CausalStepProblem problem{};
    CausalStepArgs args{};
};

// x (sequences, D) or (sequences, D, T); packed (tokens, D) or (1, D, tokens).
struct Layout {
    int64_t sequences, tokens, channels;
    bool packed, has_token_dimension;  // has_token_dimension: x has a dimension of tokens, after that of channels

    CausalStepArgs::Rows rows(const View& view) const {
        const int64_t first = view.stride(0);
        if (has_token_dimension) return {tagged(view), packed ? 0 : first, view.stride(2), view.stride(1)};
        return {tagged(view), packed ? 0 : first, packed ? first : 0, view.stride(1)};
    }
};

Layout layout_of(const Checks& check, const View& x, const View& cu_seqlens) {
    const bool packed = cu_seqlens.defined();
    GDN_REQUIRE(check, x.rank == 3 ? !packed || x.size(0) == 1 : x.rank == 2, "x",
                packed ? "(tokens, D) or (1, D, tokens), as cu_seqlens is given" : "(B, D) or (B, D, T)", shape_text(x));
    const int64_t tokens = x.rank == 3 ? x.size(2) : packed ? x.size(0) : 1;
    if (packed) check_cu_seqlens(check, cu_seqlens, tokens, x, "x");
    return {packed ? cu_seqlens.size(0) - 1 : x.size(0), tokens, x.size(1), packed, x.rank == 3};
}

// Whether the data and every multiple of the strides are aligned to 16 bytes.
bool in_units(const Tagged& values, std::initializer_list<i64> strides) {
    i64 bits = reinterpret_cast<i64>(values.data);
    for (const i64 stride : strides) bits |= stride * bytes_of(values.type);
    return bits % 16 == 0;
}
bool has_vectors(const CausalStepArgs::Rows& rows) {
    return rows.channel == 1 && in_units(rows.values, {rows.sequence, rows.token});
}

StateWindow check_window(const Checks& check, const View& state, int64_t width, const Layout& layout, const View& cache_seqlens,
                         const View& accepted) {
    GDN_REQUIRE(check, !cache_seqlens.defined() || !accepted.defined(), kAcceptedTokens, "None, as cache_seqlens is given",
                "both");
    GDN_REQUIRE(check, state.size(2) >= width - 1, "conv_state", fmt::format("at least W - 1 = {} columns", width - 1),
                shape_text(state));
    if (cache_seqlens.defined()) {
        GDN_REQUIRE(check, state.size(2) >= 1, "conv_state", "a column or more, as cache_seqlens is given", shape_text(state));
        return StateWindow::circular;
    }
    if (!accepted.defined()) return StateWindow::last;
    GDN_REQUIRE(check, layout.packed || state.size(2) >= width - 2 + layout.tokens, "conv_state",
                fmt::format("W - 2 + T = {} columns or more, as {} is given", width - 2 + layout.tokens, kAcceptedTokens),
                shape_text(state));
    return StateWindow::verify;
}

bool same_view(const View& a, const View& b) {
    bool same = a.has_memory() && a.data == b.data;
    for (int d = 0; d < a.rank; ++d) same = same && a.stride(d) == b.stride(d);
    return same;
}

PreparedUpdate prepare_update(const CausalConv1dUpdate& arguments) {
    const Checks check{arguments.name};
    const View x(arguments.x), state(arguments.conv_state), weight(arguments.weight), bias = view_of(arguments.bias);
    const View cu_seqlens = view_of(arguments.cu_seqlens), slots = view_of(arguments.conv_state_indices);
    const View cache_seqlens = view_of(arguments.cache_seqlens), accepted = accepted_of(arguments.verify);
    const DType io = check.number("x", x);
    const std::initializer_list<DType> types = number_types(x);
    const Layout layout = layout_of(check, x, cu_seqlens);

    check.rank("weight", weight, 2, "(D, W)");
    check.shape("weight", weight, {layout.channels, weight.size(1)}, "(D, W)");
    const int64_t width = weight.size(1);
    GDN_REQUIRE(check, width >= 1 && width <= kMaxStepWidth, "weight", fmt::format("W from 1 to {}", kMaxStepWidth),
                shape_text(weight));
    check.dtype("weight", weight, types);
    check.device("weight", weight, x, "x");
    if (bias.defined()) {
        check.shape("bias", bias, {layout.channels}, "(D,)");
        check.dtype("bias", bias, types);
        check.device("bias", bias, x, "x");
    }
    check.rank("conv_state", state, 3, "(slots, D, S)");
    check.shape("conv_state", state, {state.size(0), layout.channels, state.size(2)}, "(slots, D, S)");
    const DType state_type = check.dtype("conv_state", state, types);
    check.device("conv_state", state, x, "x");
    check.distinct("conv_state", state);
    const StateWindow window = check_window(check, state, width, layout, cache_seqlens, accepted);

    PreparedUpdate prepared{.x = x};
    CausalStepArgs& args = prepared.args;
    const Batch batch{layout.sequences, layout.tokens, layout.packed, x, "x"};
    check_slots(check, {.pool_name = "conv_state", .slots_name = "conv_state_indices", .pool = state, .slots = slots}, batch);
    if (slots.defined()) check.rank("conv_state_indices", slots, 1, "(sequences,)");
    if (cache_seqlens.defined()) check_per_sequence(check, "cache_seqlens", cache_seqlens, batch);
    args.accepted = check_accepted(check, accepted, batch);
    args.null_slot = check_null_slot(check, arguments.null_slot);

    const View out(arguments.out);
    GDN_REQUIRE(check, out.rank == x.rank && std::equal(out.sizes, out.sizes + out.rank, x.sizes), "out",
                "the shape of x " + shape_text(x), shape_text(out));
    check.dtype("out", out, {io});
    check.device("out", out, x, "x");
    check.distinct("out", out);
    check.apart({{"conv_state", state}, {"out", out}}, {{"x", same_view(out, x) ? View() : x},
                                                        {"weight", weight},
                                                        {"bias", bias},
                                                        {"cache_seqlens", cache_seqlens},
                                                        {"conv_state_indices", slots},
                                                        {kAcceptedTokens, accepted},
                                                        {"cu_seqlens", cu_seqlens}});
    check.apart({{"conv_state", state}}, {{"x", x}});

    args.x = layout.rows(x);
    args.out = layout.rows(out);
    args.state = {tagged(state), state.stride(0), state.stride(1), state.stride(2)};
    args.weight = tagged(weight);
    args.weight_channel = weight.stride(0);
    args.weight_tap = weight.stride(1);
    args.bias = tagged(bias);
    args.bias_channel = bias.defined() ? bias.stride(0) : 0;
    args.cu_seqlens = tagged(cu_seqlens);
    args.slots = tagged(slots);
    args.slots_sequence = slots.defined() ? slots.stride(0) : 0;
    args.slot_count = state.size(0);
    args.cache_seqlens = tagged(cache_seqlens);
    args.channels = layout.channels;
    args.sequences = check.count("x", "sequences", layout.sequences);
    args.tokens = check.count("x", "tokens", layout.tokens, kMaxTokens);
    args.columns = check.count("conv_state", "columns", state.size(2), kMaxTokens);
    args.width = static_cast<int>(width);
    args.window = window;
    args.silu = arguments.silu;
    args.plain = !layout.packed && layout.tokens == 1 && window == StateWindow::last && state.size(2) == width - 1;
    args.weight_vectors = weight.contiguous_tail(2) && in_units(args.weight, {});
    args.bias_vectors = bias.defined() && args.bias_channel == 1 && in_units(args.bias, {});
    check.count("x", "channels", layout.channels, kMostBlocks[1] * i64{kCausalStepAny.threads});

    const i64 vector = 16 / bytes_of(io);
    const bool whole = args.channels % vector == 0 && has_vectors(args.x) && has_vectors(args.out);
    const bool dense = (args.columns <= 1 || args.state.column == 1) && args.state.channel == args.columns;
    prepared.problem = {
        .sequences = args.sequences,
        .channels = args.channels,
        .width = args.width,
        .columns = args.columns,
        .io = io,
        .state = state_type,
        .window = window,
        .vectors = whole,
        .columns_vectors = args.state.channel == 1 && in_units(args.state.values, {args.state.slot, args.state.column}),
        .channels_vectors = dense && in_units(args.state.values, {args.state.slot})};
    return prepared;
}

void run_update(const CausalConv1dUpdate& x) {
    const PreparedUpdate prepared = prepare_update(x);
    const DeviceScope scope(prepared.x.device_index);
    if (prepared.args.sequences == 0) {  // all tokens are after the last sequence
        Tensor out = x.out;
        torch::stable::zero_(out);
        return;
    }
    CausalStep::run(prepared.problem, prepared.args, target_of(x.name, prepared.x));
}

GDN_REGISTER(CausalConv1dUpdate, prepare_update, run_update)

}  // namespace
}  // namespace gdn_cuda::conv

namespace gdn_cuda {

Tensor causal_conv1d_update(const CausalConv1dUpdate& given) {
    return into_out<CausalConv1dUpdate, conv::run_update>(given, [](CausalConv1dUpdate x) {
        x.out.emplace(torch::stable::empty_like(x.x));  // with x's layout
        return x;
    });
}

}  // namespace gdn_cuda
