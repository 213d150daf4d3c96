// ssd_scan: Mamba-2's scan, by ssd/prefill.
#include <torch/csrc/stable/ops.h>

#include <tuple>
#include <vector>

#include "../../jit/tensor_map.hpp"
#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/state_slots.hpp"
#include "../common/uncovered_zeros.hpp"
#include "backward.hpp"
#include "prefill.hpp"
#include "steps.hpp"

namespace gdn_cuda::ssd {
namespace {

struct SsdScanCall {
    static constexpr const char* name = "ssd_scan";
    Given x, dt, A, B, C;
    OptionalTensor D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state;
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = 0;

    GDN_FIELDS(x, dt, A, B, C, D, z, dt_bias, initial_state, cu_seqlens, seq_idx, has_initial_state, dt_softplus, dt_lowest,
               dt_highest)
};
// With a pool of states (slots, H, P, N), of which sequences read and write those in their slots.
struct SsdScanPoolCall : SsdScanCall {
    static constexpr const char* name = "ssd_scan_pool";
    Written state;
    Given state_indices;
    OptionalTensor write_indices;
    bool update_state = true;

    GDN_FIELDS(x, dt, A, B, C, D, z, dt_bias, state, state_indices, cu_seqlens, has_initial_state, write_indices, update_state,
               dt_softplus, dt_lowest, dt_highest)
};

// The state after sequences, and their decays. C, D and z have no part in them.
struct SsdSummaryCall {
    static constexpr const char* name = "ssd_summary";
    Given x, dt, A, B;
    OptionalTensor dt_bias, initial_state, cu_seqlens;
    bool dt_softplus = false;
    double dt_lowest = 0, dt_highest = 0;

    GDN_FIELDS(x, dt, A, B, dt_bias, initial_state, cu_seqlens, dt_softplus, dt_lowest, dt_highest)
};

// The gradients of x, dt, B, C and the initial state, and of A, dt_bias and D for each chunk. dt's and those are fp32.
struct SsdBackwardCall : SsdScanCall {
    static constexpr const char* name = "ssd_scan_backward";
    Given out_gradient;
    OptionalTensor state_gradient;

    GDN_FIELDS(x, dt, A, B, C, D, dt_bias, initial_state, cu_seqlens, seq_idx, out_gradient, state_gradient, dt_softplus,
               dt_lowest, dt_highest)
};

struct Prepared {
    View x;
    DType io;
    int64_t batch, tokens, heads, channels, groups, states, sequences;
    SsdStepsArgs steps;
    SsdArgs args;

    // Slots of chunks.
    int64_t slots() const {
        return steps.cu_seqlens.data == nullptr ? batch * ceil_div(tokens, kChunk) : tokens / kChunk + sequences;
    }
};

// States (count, H, P, N), a head's contiguous.
SsdStates check_states(const Checks& check, const char* argument, const View& states, const Prepared& prepared, int64_t count) {
    check.shape(argument, states, {count, prepared.heads, prepared.channels, prepared.states}, "(sequences, H, P, N)");
    if (prepared.io == DType::f64)
        check.dtype(argument, states, {DType::f64});
    else
        check.dtype(argument, states, {DType::f32, DType::bf16, DType::f16});
    check.device(argument, states, prepared.x, "x");
    GDN_REQUIRE(check, states.contiguous_tail(2), argument, "contiguous channels and states of each head", stride_text(states));
    return {.data = states.data, .type = *dtype_of(states), .slot = states.stride(0), .head = states.stride(1)};
}

// A, D and dt_bias: fp64 beside x in fp64, which no kernel takes.
void check_parameter(const Checks& check, const char* argument, const View& view, const View& x) {
    if (dtype_of(x) == DType::f64)
        check.dtype(argument, view, {DType::f64});
    else
        check.dtype(argument, view, {DType::f32, DType::bf16, DType::f16});
    check.device(argument, view, x, "x");
}
PerHead per_head(const Checks& check, const char* argument, const View& view, const View& x, int64_t heads) {
    if (!view.defined()) return {};
    check.shape(argument, view, {heads}, "(H,)");
    check_parameter(check, argument, view, x);
    return {.values = tagged(view), .head = view.stride(0)};
}

Prepared prepare(const Checks& check, const SsdScanCall& call) {
    const View x(call.x), dt(call.dt), A(call.A), B(call.B), C(call.C),
        D = view_of(call.D), z = view_of(call.z), dt_bias = view_of(call.dt_bias), initial = view_of(call.initial_state),
        cu_seqlens = view_of(call.cu_seqlens);
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
    for (const auto& [name, view] : {std::pair{"B", B}, {"C", C}}) {
        check.dtype(name, view, {io});
        check.device(name, view, x, "x");
        check.last_contiguous(name, view);
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
                      .args = {}};
    SsdStepsArgs& steps = prepared.steps;
    SsdArgs& args = prepared.args;
    steps.A = per_head(check, "A", A, x, heads);
    steps.dt_bias = per_head(check, "dt_bias", dt_bias, x, heads);
    if (D.defined() && D.rank == 2) {
        check.shape("D", D, {heads, channels}, "(H,) or (H, P)");
        check_parameter(check, "D", D, x);
        args.D = {.values = tagged(D), .head = D.stride(0), .channel = D.stride(1)};
    } else {
        args.D = per_head(check, "D", D, x, heads);
    }
    steps.dt = tagged(dt);
    steps.dt_batch = dt.stride(0), steps.dt_token = dt.stride(1), steps.dt_head = dt.stride(2);
    if (cu_seqlens.defined()) {
        GDN_REQUIRE(check, batch == 1, "x", "a batch of 1, as cu_seqlens packs sequences along T", shape_text(x));
        check_cu_seqlens(check, cu_seqlens, tokens, x, "x");
        prepared.sequences = cu_seqlens.size(0) - 1;
        args.cu_seqlens = tagged(cu_seqlens);
    }
    if (const View numbers = view_of(call.seq_idx); numbers.defined()) {
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
    if (initial.defined()) args.initial = check_states(check, "initial_state", initial, prepared, prepared.sequences);
    if (const View has_initial = view_of(call.has_initial_state); has_initial.defined()) {
        check.shape("has_initial_state", has_initial, {prepared.sequences}, "(sequences,)");
        GDN_REQUIRE(check, has_initial.dtype == torch_numbers.boolean, "has_initial_state", "bool", dtype_name(has_initial));
        check.device("has_initial_state", has_initial, x, "x");
        check.last_contiguous("has_initial_state", has_initial);
        args.has_initial = static_cast<const bool*>(has_initial.data);
    }
    GDN_REQUIRE(check, call.dt_lowest <= call.dt_highest, "dt_limit", "a lower bound that is not above the upper one",
                fmt::format("({}, {})", call.dt_lowest, call.dt_highest));
    steps.lowest = static_cast<float>(call.dt_lowest), steps.highest = static_cast<float>(call.dt_highest);
    steps.softplus = call.dt_softplus;
    steps.cu_seqlens = args.cu_seqlens, steps.sequences = args.sequences, steps.tokens = args.tokens, steps.heads = args.heads;
    steps.slots = check.count("x", "chunks", prepared.slots());
    return prepared;
}

Prepared prepare_scan(const SsdScanCall& call) {
    return prepare({call.name}, call);
}
Prepared prepare_pool(const SsdScanPoolCall& call) {
    const Checks check{SsdScanCall::name};
    Prepared prepared = prepare(check, call);
    SsdArgs& args = prepared.args;
    const View state(call.state), slots(call.state_indices), written = view_of(call.write_indices), none;
    check.rank("state", state, 4, "(slots, H, P, N)");
    args.initial = check_states(check, "state", state, prepared, state.size(0));
    check.distinct("state", state);
    const Batch batch{prepared.sequences, prepared.tokens, args.cu_seqlens.data != nullptr, prepared.x, "x"};
    check_indices(check, "state_indices", slots, batch);
    check.shape("state_indices", slots, {prepared.sequences}, "(sequences,)");
    set_slots(check, args, {.pool_name = "state", .slots_name = "state_indices", .pool = state, .slots = slots});
    if (call.update_state) args.last = args.initial;
    if (written.defined()) {
        GDN_REQUIRE(check, call.update_state, "write_indices", "None without update_state", "a tensor");
        check_per_sequence(check, "write_indices", written, batch);
        args.last_slots = tagged(written), args.last_slot_count = args.slot_count;
    }
    check.apart({{"state", call.update_state ? state : none}}, {{"x", prepared.x},
                                                                {"dt", View(call.dt)},
                                                                {"A", View(call.A)},
                                                                {"B", View(call.B)},
                                                                {"C", View(call.C)},
                                                                {"D", view_of(call.D)},
                                                                {"z", view_of(call.z)},
                                                                {"dt_bias", view_of(call.dt_bias)},
                                                                {"state_indices", slots},
                                                                {"cu_seqlens", view_of(call.cu_seqlens)},
                                                                {"has_initial_state", view_of(call.has_initial_state)},
                                                                {"write_indices", written}});
    return prepared;
}

jit::TiledTensor tiled(const View& view) {
    return {
        {view.data, view.stride(0), view.stride(1), view.stride(2)}, view.size(0), view.size(1), view.size(2), view.size(3)};
}

// The tensor itself if TMA can read it, else a copy.
Tensor tileable(const Tensor& x) {
    return jit::can_tile(tiled(View(x))) ? x : torch::stable::contiguous(torch::stable::clone(x));
}

// What a launch reads beside the caller's tensors.
struct Inputs {
    const Prepared& prepared;
    const Target& target;
    std::vector<Tensor> kept{};

    TensorMap map(const Tensor& tensor) const {
        return jit::tile_map(tiled(View(tensor)), prepared.io, kChunk, target.ordinal);
    }
    TensorMap add(const Tensor& tensor) {
        kept.push_back(tileable(tensor));
        return map(kept.back());
    }
    // Launches ssd/steps, and returns where it stores.
    const ChunkSteps* steps(const Tensor& like) {
        constexpr int64_t kFloats = sizeof(ChunkSteps) / sizeof(float);
        kept.push_back(torch::stable::new_empty(like, {prepared.slots(), prepared.heads, kFloats}, ScalarType::Float));
        SsdStepsArgs args = prepared.steps;
        args.steps = static_cast<ChunkSteps*>(memory_of(kept.back()));
        Steps::run(args, target);
        return args.steps;
    }
    // Splits sequences into segments where heads are few, and launches.
    void run(SsdArgs& args, bool gated, const Tensor& like) {
        const SsdConfig config = ssd_config(prepared.io, prepared.states, gated);
        const i64 blocks = Prefill::blocks_of_sequence(config, args);
        args.segments.count = ssd_segments(blocks, args.sequences, args.tokens, args.cu_seqlens.data != nullptr,
                                           jit::device_traits(target.ordinal).multiprocessors);
        if (args.segments.count > 1) {
            const int64_t readers = int64_t{args.sequences} * args.heads * args.tiles_of_head,
                          tiles = readers * args.segments.count;
            kept.push_back(torch::stable::new_empty(like, {tiles, kTileRows * config.states + 1}, ScalarType::Float));
            args.segments.states = static_cast<float*>(memory_of(kept.back()));
            args.segments.decays = args.segments.states + tiles * kTileRows * config.states;
            kept.push_back(torch::stable::new_zeros(like, {tiles + readers}, ScalarType::Int));
            args.segments.done = static_cast<unsigned*>(memory_of(kept.back()));
            args.segments.read = args.segments.done + tiles;
        }
        Prefill::run(config, args, target);
    }
};

void require_kernel(const Checks& check, const Prepared& prepared) {
    GDN_REQUIRE(check, prepared.io == DType::bf16 || prepared.io == DType::f16, "x", "bfloat16 or float16",
                dtype_name(prepared.x));
    GDN_REQUIRE(check, prepared.channels % 8 == 0 && prepared.states % 8 == 0 && prepared.states <= 256, "x",
                "multiples of 8 channels and states, and at most 256 states",
                fmt::format("{} and {}", prepared.channels, prepared.states));
}

// Runs a prepared call, whose states go where the caller wants them.
Tensor run(const Prepared& prepared, const SsdScanCall& call) {
    require_kernel({SsdScanCall::name}, prepared);
    const View &x = prepared.x, z = view_of(call.z);
    const Tensor out = torch::stable::new_empty(call.x, {prepared.batch, prepared.tokens, prepared.heads, prepared.channels});
    const DeviceScope scope(x.device_index);
    const Target target = target_of(SsdScanCall::name, x);
    SsdArgs args = prepared.args;
    Inputs inputs{prepared, target};
    if (x.numel() > 0) {
        args.x = inputs.add(call.x), args.B = inputs.add(call.B), args.C = inputs.add(call.C), args.out = inputs.map(out);
        if (z.defined()) args.z = inputs.add(*call.z);
    }
    const View written(out);
    if (args.cu_seqlens.data != nullptr) {
        const i64 bytes = prepared.heads * prepared.channels * bytes_of(prepared.io);
        common::UncoveredZeros::run({{.data = memory_of(out), .token = bytes, .rows = 1, .bytes = static_cast<int>(bytes)}},
                                    args.cu_seqlens, args.sequences, args.tokens, target);
    }
    args.steps = inputs.steps(call.x);
    args.out_data = memory_of(out);
    args.out_batch = written.strides[0], args.out_token = written.strides[1], args.out_head = written.strides[2];
    inputs.run(args, z.defined(), call.x);
    return out;
}

// New states, to which args.last is set.
Tensor new_last_states(Prepared& prepared, const Tensor& like) {
    const int64_t head_elements = prepared.channels * prepared.states;
    const Tensor last = torch::stable::new_empty(like, {prepared.sequences, prepared.heads, prepared.channels, prepared.states},
                                                 ScalarType::Float);
    prepared.args.last = {.data = memory_of(last), .slot = prepared.heads * head_elements, .head = head_elements};
    return last;
}

std::tuple<Tensor, Tensor> run_scan(const SsdScanCall& call) {
    Prepared prepared = prepare_scan(call);
    const Tensor last = new_last_states(prepared, call.x);
    return {run(prepared, call), last};
}
Tensor run_pool(const SsdScanPoolCall& call) {
    return run(prepare_pool(call), call);
}

Prepared prepare_summary(const SsdSummaryCall& x) {
    return prepare({x.name}, {.x = x.x,
                              .dt = x.dt,
                              .A = x.A,
                              .B = x.B,
                              .C = x.B,
                              .dt_bias = x.dt_bias,
                              .initial_state = x.initial_state,
                              .cu_seqlens = x.cu_seqlens,
                              .dt_softplus = x.dt_softplus,
                              .dt_lowest = x.dt_lowest,
                              .dt_highest = x.dt_highest});
}
std::tuple<Tensor, Tensor> run_summary(const SsdSummaryCall& call) {
    Prepared prepared = prepare_summary(call);
    require_kernel({call.name}, prepared);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(call.name, prepared.x);
    const Tensor last = new_last_states(prepared, call.x);
    const Tensor decay = torch::stable::new_empty(call.x, {prepared.sequences, prepared.heads}, ScalarType::Float);
    SsdArgs args = prepared.args;
    Inputs inputs{prepared, target};
    if (prepared.x.numel() > 0) args.x = inputs.add(call.x), args.B = inputs.add(call.B);
    args.steps = inputs.steps(call.x);
    args.states_only = true, args.decay = static_cast<float*>(memory_of(decay));
    inputs.run(args, false, call.x);
    return {last, decay};
}

Prepared prepare_backward(const SsdBackwardCall& call) {
    const Checks check{call.name};
    Prepared prepared = prepare(check, call);
    const View& x = prepared.x;
    const View out_gradient(call.out_gradient), state_gradient = view_of(call.state_gradient);
    check.shape("out_gradient", out_gradient, {prepared.batch, prepared.tokens, prepared.heads, prepared.channels},
                "(B, T, H, P), the shape of x");
    check.dtype("out_gradient", out_gradient, {prepared.io});
    check.device("out_gradient", out_gradient, x, "x");
    check.last_contiguous("out_gradient", out_gradient);
    if (state_gradient.defined()) check_states(check, "state_gradient", state_gradient, prepared, prepared.sequences);
    return prepared;
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_backward(const SsdBackwardCall& call) {
    const Checks check{call.name};
    Prepared prepared = prepare_backward(call);
    require_kernel(check, prepared);
    GDN_REQUIRE(check, prepared.states <= 128, "B", "at most 128 states", shape_text(View(call.B)));
    GDN_REQUIRE(check, !call.D || View(*call.D).rank == 1, "D", "(H,)", shape_text(View(*call.D)));
    const View& x = prepared.x;
    const DeviceScope scope(x.device_index);
    const Target target = target_of(call.name, x);
    const int64_t head_elements = prepared.channels * prepared.states;
    const int64_t chunks = prepared.slots();
    const auto like_x = [&](std::vector<int64_t> sizes) { return torch::stable::new_empty(call.x, sizes); };
    const auto floats = [&](std::vector<int64_t> sizes) { return torch::stable::new_empty(call.x, sizes, ScalarType::Float); };
    const Tensor states = like_x({chunks, prepared.channels, prepared.heads, prepared.states}),
                 gradients = like_x({chunks, prepared.channels, prepared.heads, prepared.states}),
                 dx = like_x({prepared.batch, prepared.tokens, prepared.heads, prepared.channels}),
                 dB = like_x({prepared.batch, prepared.tokens, prepared.groups, prepared.states}),
                 dC = like_x({prepared.batch, prepared.tokens, prepared.groups, prepared.states}),
                 ddt = floats({prepared.batch, prepared.tokens, prepared.heads}), sums = floats({3, chunks, prepared.heads});
    Inputs inputs{prepared, target};
    SsdArgs forward = prepared.args;
    forward.states_only = true, forward.chunk_states = memory_of(states), forward.last = {};
    forward.steps = inputs.steps(call.x);
    if (x.numel() > 0) {
        forward.x = inputs.add(call.x), forward.B = inputs.add(call.B);
        SsdArgs reverse = forward;
        reverse.reversed = true, reverse.chunk_states = memory_of(gradients);
        reverse.x = inputs.add(call.out_gradient), reverse.B = inputs.add(call.C);
        reverse.initial = call.state_gradient
                              ? check_states(check, "state_gradient", View(*call.state_gradient), prepared, prepared.sequences)
                              : SsdStates{};
        const Tensor first = new_last_states(prepared, call.x);
        reverse.last = prepared.args.last;
        inputs.run(forward, false, call.x);
        inputs.run(reverse, false, call.x);
        // A head's states are contiguous where ssd/prefill stores them.
        const auto state_map = [&](const Tensor& of) {
            return jit::tile_map({{memory_of(of), prepared.heads * head_elements, prepared.states, head_elements},
                                  chunks,
                                  prepared.channels,
                                  prepared.heads,
                                  prepared.states},
                                 prepared.io, kChunk, target.ordinal);
        };
        if (prepared.args.cu_seqlens.data != nullptr)
            common::UncoveredZeros::run({{.data = memory_of(dx), .token = prepared.heads * prepared.channels * bytes_of(prepared.io), .rows = 1, .bytes = static_cast<int>(prepared.heads * prepared.channels * bytes_of(prepared.io))},
                                         {.data = memory_of(dB), .token = prepared.groups * prepared.states * bytes_of(prepared.io), .rows = 1, .bytes = static_cast<int>(prepared.groups * prepared.states * bytes_of(prepared.io))},
                                         {.data = memory_of(dC), .token = prepared.groups * prepared.states * bytes_of(prepared.io), .rows = 1, .bytes = static_cast<int>(prepared.groups * prepared.states * bytes_of(prepared.io))},
                                         {.data = memory_of(ddt), .token = prepared.heads * 4, .rows = 1, .bytes = static_cast<int>(prepared.heads * 4)}},
                                        prepared.args.cu_seqlens, prepared.args.sequences, prepared.args.tokens, target);
        SsdBackwardArgs args{prepared.steps};
        args.steps = const_cast<ChunkSteps*>(forward.steps);
        args.x = forward.x, args.out_gradient = reverse.x, args.B = forward.B, args.C = reverse.B;
        args.states = state_map(states), args.gradients = state_map(gradients);
        args.D = prepared.args.D, args.groups = prepared.args.groups, args.channels = prepared.args.channels;
        args.state_count = prepared.args.states, args.tiles_of_head = prepared.args.tiles_of_head;
        args.dx = memory_of(dx), args.dB = memory_of(dB), args.dC = memory_of(dC);
        args.ddt = static_cast<float*>(memory_of(ddt)), args.sums = static_cast<float*>(memory_of(sums));
        Backward::run({.io = prepared.io, .states = prepared.states <= 64 ? 64 : 128}, args, target);
        return {dx, ddt, dB, dC, sums, first};
    }
    const Tensor first = new_last_states(prepared, call.x);
    if (call.state_gradient)
        torch::stable::copy_(const_cast<Tensor&>(first), *call.state_gradient);
    else
        torch::stable::zero_(const_cast<Tensor&>(first));
    torch::stable::zero_(const_cast<Tensor&>(sums));
    return {dx, ddt, dB, dC, sums, first};
}

GDN_REGISTER(SsdScanCall, prepare_scan, run_scan)
GDN_REGISTER(SsdBackwardCall, prepare_backward, run_backward)
GDN_REGISTER(SsdSummaryCall, prepare_summary, run_summary)
GDN_REGISTER(SsdScanPoolCall, prepare_pool, run_pool)

}  // namespace
}  // namespace gdn_cuda::ssd
