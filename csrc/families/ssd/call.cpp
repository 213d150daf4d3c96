#include "call.hpp"

#include <torch/csrc/stable/ops.h>

#include "../../operators/new_tensor.hpp"
#include "../../operators/packed.hpp"
#include "parameters.hpp"
#include "variables.hpp"

namespace gdn_cuda::ssd {

SsdViews::SsdViews(const SsdScan& call, bool without_batch)
    : x(call.x),
      dt(call.dt),
      A(call.A),
      B(call.B),
      C(call.C),
      D(view_of(call.D)),
      z(view_of(call.z)),
      dt_bias(view_of(call.dt_bias)),
      initial_state(view_of(call.initial_state)),
      cu_seqlens(view_of(call.cu_seqlens)),
      seq_idx(view_of(call.seq_idx)),
      has_initial_state(view_of(call.has_initial_state)),
      out(view_of(call.out)) {
    if (!without_batch || x.rank != 3 || !cu_seqlens.defined()) return;
    auto room = with_batch_.begin();
    for (View* each : {&x, &dt, &B, &C, &z, &out}) {
        Dimensions& added = *room++;
        if (!each->defined() || each->rank > 4) continue;
        added.sizes[0] = 1, added.strides[0] = 0;
        std::copy_n(each->sizes, each->rank, added.sizes.begin() + 1);
        std::copy_n(each->strides, each->rank, added.strides.begin() + 1);
        each->sizes = added.sizes.data(), each->strides = added.strides.data(), ++each->rank;
    }
}

jit::TiledTensor tiled(const View& view) {
    return {rows_of(view), view.rank == 4 ? view.size(0) : 1, view.size(-3), view.size(-2), view.size(-1)};
}

// States (count, H, P, N), a head's contiguous.
SsdStates check_states(const Checks& check, const char* argument, const View& states, const Prepared& prepared, int64_t count,
                       bool may_be_coded) {
    check.shape(argument, states, {count, prepared.heads, prepared.channels, prepared.states}, "(sequences, H, P, N)");
    check.device(argument, states, prepared.x, "x");
    SsdStates found{.data = states.data, .slot = states.stride(0), .head = states.stride(1)};
    if (may_be_coded && dtype_of(states) == DType::i8) return found;  // what else it has to be is checked with its scales
    if (prepared.io == DType::f64)
        check.dtype(argument, states, {DType::f64});
    else if (may_be_coded)
        check.dtype(argument, states, {DType::f32, DType::bf16, DType::f16, DType::i8});
    else
        check.dtype(argument, states, {DType::f32, DType::bf16, DType::f16});
    GDN_REQUIRE(check, states.contiguous_tail(2), argument, "contiguous channels and states of each head", stride_text(states));
    if (prepared.io != DType::f64 && prepared.states % 8 == 0) {  // a kernel may run, which takes pairs
        const auto pair_bytes = static_cast<uintptr_t>(2 * bytes_of(*dtype_of(states)));
        const bool pairs = reinterpret_cast<uintptr_t>(states.data) % pair_bytes == 0 && states.stride(0) % 2 == 0 &&
                           states.stride(1) % 2 == 0;
        GDN_REQUIRE(check, pairs, argument, "heads that begin at an even element, where two elements are aligned",
                    stride_text(states));
    }
    found.type = *dtype_of(states);
    return found;
}

Prepared prepare(const Checks& check, const SsdScan& call, const SsdViews& views) {
    const View &x = views.x, &dt = views.dt, &A = views.A, &B = views.B, &C = views.C, &D = views.D, &z = views.z,
               &dt_bias = views.dt_bias, &initial = views.initial_state, &cu_seqlens = views.cu_seqlens;
    check.rank("x", x, 4, "(B, T, H, P)");
    const DType io = check.dtype("x", x, {DType::bf16, DType::f16, DType::f32, DType::f64});
    const int64_t batch = x.size(0), tokens = x.size(1), heads = x.size(2), channels = x.size(3);
    check.shape("dt", dt, {batch, tokens, heads}, "(B, T, H)");
    check.dtype("dt", dt, {DType::bf16, DType::f16, DType::f32, DType::f64});
    check.device("dt", dt, x, "x");
    check.rank("B", B, 4, "(B, T, G, N)");
    const int64_t groups = B.size(2), states = B.size(3);
    GDN_REQUIRE(check, B.size(0) == batch && B.size(1) == tokens, "B", fmt::format("(B={}, T={}, G, N)", batch, tokens),
                shape_text(B));
    GDN_REQUIRE(check, states >= 1, "B", "a state or more", shape_text(B));
    GDN_REQUIRE(check, groups >= 1 && heads % groups == 0, "B",
                fmt::format("a number of groups that divides the {} heads", heads), fmt::format("{}", groups));
    check.shape("C", C, {batch, tokens, groups, states}, "(B, T, G, N), the shape of B");
    for (const auto& [name, view] : {std::pair{"B", &B}, {"C", &C}}) {
        check.dtype(name, *view, {io});
        check.device(name, *view, x, "x");
        check.last_contiguous(name, *view);
    }
    check.last_contiguous("x", x);
    if (z.defined()) {
        check.shape("z", z, {batch, tokens, heads, channels}, "(B, T, H, P), the shape of x");
        check.dtype("z", z, {io});
        check.device("z", z, x, "x");
        check.last_contiguous("z", z);
    }
    Prepared prepared{.x = x,
                      .io = io,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = heads,
                      .channels = channels,
                      .groups = groups,
                      .states = states,
                      .sequences = batch,
                      .steps = {},
                      .args = {},
                      .deterministic = call.deterministic};
    SsdStepsArgs& steps = prepared.steps;
    SsdArgs& args = prepared.args;
    steps.A = per_head(check, "A", A, x, heads);
    steps.dt_bias = per_head(check, "dt_bias", dt_bias, x, heads);
    args.D = per_channel(check, "D", D, x, heads, channels);
    steps.dt = tagged(dt);
    steps.dt_batch = dt.stride(0), steps.dt_token = dt.stride(1), steps.dt_head = dt.stride(2);
    if (cu_seqlens.defined()) {
        GDN_REQUIRE(check, batch == 1, "x", "a batch of 1, as cu_seqlens packs sequences along T", shape_text(x));
        check_cu_seqlens(check, cu_seqlens, tokens, x, "x");
        prepared.sequences = cu_seqlens.size(0) - 1;
        args.cu_seqlens = tagged(cu_seqlens);
    }
    if (const View& numbers = views.seq_idx; numbers.defined()) {
        GDN_REQUIRE(check, !cu_seqlens.defined(), "seq_idx", "None with cu_seqlens", "a tensor");
        check.shape("seq_idx", numbers, {batch, tokens}, "(B, T)");
        check.dtype("seq_idx", numbers, {DType::i32});
        check.device("seq_idx", numbers, x, "x");
        check.last_contiguous("seq_idx", numbers);
        steps.seq_idx = static_cast<const int*>(numbers.data), steps.seq_idx_batch = numbers.stride(0);
    }
    args.sequences = check.count("x", "sequences", prepared.sequences, 65535);
    args.tokens = check.count("x", "tokens", tokens, kMaxTokens);
    args.heads = check.count("x", "heads", heads);
    args.groups = static_cast<int>(groups);
    args.channels = check.count("x", "channels of a head", channels);
    args.states = check.count("B", "states", states);
    args.tiles_of_head = static_cast<int>(ceil_div(channels, kTileRows));
    if (initial.defined()) args.passes[0].initial = check_states(check, "initial_state", initial, prepared, prepared.sequences);
    if (const View& has_initial = views.has_initial_state; has_initial.defined()) {
        check.shape("has_initial_state", has_initial, {prepared.sequences}, "(sequences,)");
        GDN_REQUIRE(check, has_initial.dtype == torch_numbers.boolean, "has_initial_state", "bool", dtype_name(has_initial));
        check.device("has_initial_state", has_initial, x, "x");
        check.last_contiguous("has_initial_state", has_initial);
        args.has_initial = static_cast<const bool*>(has_initial.data);
    }
    check_limits(check, call.dt_lowest, call.dt_highest);
    steps.lowest = static_cast<float>(call.dt_lowest), steps.highest = static_cast<float>(call.dt_highest);
    steps.softplus = call.dt_softplus;
    steps.cu_seqlens = args.cu_seqlens, steps.sequences = args.sequences, steps.tokens = args.tokens, steps.heads = args.heads;
    steps.slots = check.count("x", "chunks", prepared.slots());
    return prepared;
}

void require_kernel(const Checks& check, const Prepared& prepared) {
    GDN_REQUIRE(check, prepared.io == DType::bf16 || prepared.io == DType::f16, "x", "bfloat16 or float16",
                dtype_name(prepared.x));
    GDN_REQUIRE(check, prepared.channels % 8 == 0 && prepared.states % 8 == 0 && prepared.states <= 256, "x",
                "multiples of 8 channels and states, and at most 256 states",
                fmt::format("{} and {}", prepared.channels, prepared.states));
}

// New states, to which args.last is set.
Tensor new_last_states(Prepared& prepared) {
    const int64_t head_elements = prepared.channels * prepared.states;
    const Tensor last =
        new_tensor(prepared.x, {prepared.sequences, prepared.heads, prepared.channels, prepared.states}, torch_numbers.f32);
    prepared.args.passes[0].last = {.data = memory_of(last), .slot = prepared.heads * head_elements, .head = head_elements};
    return last;
}

bool uses_mma(const Target& target) {
    return jit::device_traits(target.ordinal).capability != 90 || wanted_scan() == WantedScan::mma;
}

Tensor tileable(const Tensor& x) {
    return jit::can_tile(tiled(View(x))) ? x : torch::stable::contiguous(torch::stable::clone(x));
}

TensorMap Inputs::map(const jit::TiledTensor& tensor) const {
    return jit::tile_map(tensor, prepared.io, kChunk, target.ordinal);
}
jit::TiledTensor Inputs::tileable_view(const View& view, const Tensor& tensor) {
    const jit::TiledTensor given = tiled(view);
    if (jit::can_tile(given)) return given;
    kept.push_back(tileable(tensor));
    return tiled(View(kept.back()));
}
SsdChunkTable Inputs::table(SsdCheckpointsArgs args) {
    if (!args.reports() || args.sequences == 0) return {};
    constexpr int64_t kInts = sizeof(SsdChunk) / sizeof(int);
    const int64_t entries = prepared.sequences + 1;
    args.slots = prepared.steps.slots;
    kept.push_back(new_tensor(prepared.x, {int64_t{args.slots} * kInts + 3 * entries}, torch_numbers.i32));
    args.chunks = static_cast<SsdChunk*>(memory_of(kept.back()));
    args.first = reinterpret_cast<int*>(args.chunks + args.slots);
    args.first_row = args.first + entries, args.first_before = args.first_row + entries;
    Checkpoints::run(args, target);
    return {.chunks = args.chunks, .first = args.first, .first_row = args.first_row, .first_before = args.first_before};
}
ChunkSteps* Inputs::prepare_scan(SsdArgs& args, i64 blocks, int padded_states) {
    SsdStepsLaunch steps{prepared.steps};
    if (!prepared.deterministic)
        args.segments.count = ssd_segments(blocks * args.pass_count, args.sequences, args.tokens,
                                           args.cu_seqlens.data != nullptr, jit::device_traits(target.ordinal).multiprocessors);
    if (args.segments.count > 1) {
        const int64_t readers = int64_t{args.pass_count} * args.sequences * args.heads * args.tiles_of_head,
                      tiles = readers * args.segments.count;
        kept.push_back(new_tensor(prepared.x, {tiles, kTileRows * padded_states + 1}, torch_numbers.f32));
        args.segments.states = static_cast<float*>(memory_of(kept.back()));
        args.segments.decays = args.segments.states + tiles * kTileRows * padded_states;
        kept.push_back(new_tensor(prepared.x, {tiles + readers}, torch_numbers.i32));
        args.segments.done = static_cast<unsigned*>(memory_of(kept.back()));
        args.segments.read = args.segments.done + tiles;
        steps.counters = args.segments.done, steps.counter_count = tiles + readers;
    }
    constexpr int64_t kFloats = sizeof(ChunkSteps) / sizeof(float);
    kept.push_back(new_tensor(prepared.x, {steps.slots, prepared.heads, kFloats}, torch_numbers.f32));
    args.steps = steps.steps = static_cast<ChunkSteps*>(memory_of(kept.back()));
    steps.chunks = args.table.chunks;
    steps.out = packed_out;
    Steps::run(steps, target);
    return steps.steps;
}
ChunkSteps* Inputs::run(SsdArgs& args, bool gated) {
    const SsdConfig config = ssd_config(prepared.io, prepared.states, !args.states_only, gated);
    ChunkSteps* const steps = prepare_scan(args, Prefill::blocks_of_sequence(config, args), config.states);
    Prefill::run(config, args, target);
    return steps;
}
ChunkSteps* Inputs::run(SsdMmaArgs& args, bool gated) {
    const SsdMmaConfig config = PrefillMma::choose(prepared.io, prepared.states, gated, jit::device_traits(target.ordinal));
    ChunkSteps* const steps = prepare_scan(args.scan, PrefillMma::blocks_of_sequence(config, args.scan), config.states);
    PrefillMma::run(config, args, target);
    return steps;
}

}  // namespace gdn_cuda::ssd
