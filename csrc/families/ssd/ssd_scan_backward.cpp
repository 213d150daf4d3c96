// ssd_scan_backward: the gradients of Mamba-2's scan. ssd/prefill or ssd/prefill_mma stores the state before each chunk and its
// gradient after, from either end, for ssd/backward or ssd/backward_mma.
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "../common/uncovered_zeros.hpp"
#include "backward.hpp"
#include "backward_mma.hpp"
#include "call.hpp"

namespace gdn_cuda::ssd {
namespace {

// The gradients of x, dt, B, C and the initial state, and of A, dt_bias and D for each chunk. dt's and those are fp32.
struct SsdBackwardCall : SsdScan {
    static constexpr const char* name = "ssd_scan_backward";
    Given out_gradient;
    OptionalTensor state_gradient;

    GDN_FIELDS(x, dt, A, B, C, D, dt_bias, initial_state, cu_seqlens, seq_idx, out_gradient, state_gradient, dt_softplus,
               dt_lowest, dt_highest, deterministic)
};

Prepared prepare_backward(const SsdBackwardCall& call) {
    const Checks check{call.name};
    Prepared prepared = prepare(check, call, SsdViews(call));
    check.count("x", "sequences", 2 * prepared.sequences, 65535);  // two passes share the grid's y
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

// Rows of `row_bytes` for every token, contiguous.
common::TokenRows token_rows(const Tensor& tensor, int64_t row_bytes) {
    return {.data = memory_of(tensor), .token = row_bytes, .rows = 1, .bytes = static_cast<int>(row_bytes)};
}

// What ssd/backward takes; ssd/backward_mma takes the rest.
bool fits_hopper(const Target& target, int64_t states) {
    return !uses_mma(target) && states <= 128;
}

// Results of a call, and the states between chunks: before each, and their gradients after.
struct Made {
    Tensor dx, ddt, dB, dC, sums, first, before, gradients;
};

// States (slots, H, P, N) in tiles of some channels and 64 states.
TensorMap state_map(const Inputs& inputs, const Tensor& of, int channels_of_tile) {
    const Prepared& prepared = inputs.prepared;
    const i64 head = prepared.channels * prepared.states;
    return jit::tile_map({{memory_of(of), prepared.heads * head, prepared.states, head},
                          prepared.slots(),
                          prepared.channels,
                          prepared.heads,
                          prepared.states},
                         prepared.io, channels_of_tile, inputs.target.ordinal);
}

// The two passes over all chunks, which store the states. Returns the steps of chunks.
ChunkSteps* run_passes(Inputs& inputs, const SsdBackwardCall& call, const Made& made) {
    const Prepared& prepared = inputs.prepared;
    SsdMmaArgs every{.scan = prepared.args, .x = {}, .z = {}, .B = {}, .C = {}, .out_gradient = {}};
    SsdArgs& scan = every.scan;
    auto& [forward, reverse] = scan.passes;
    scan.states_only = true, scan.pass_count = 2;
    forward.chunk_states = memory_of(made.before), reverse.chunk_states = memory_of(made.gradients);
    reverse.last = forward.last, forward.last = {};
    if (call.state_gradient)
        reverse.initial = check_states({call.name}, "state_gradient", View(*call.state_gradient), prepared, prepared.sequences);
    if (uses_mma(inputs.target)) {
        if (prepared.x.numel() > 0) {
            every.x = inputs.add_rows(call.x), every.B = inputs.add_rows(call.B), every.C = inputs.add_rows(call.C);
            every.out_gradient = inputs.add_rows(call.out_gradient);
        }
        return inputs.run(every, false);
    }
    if (prepared.x.numel() > 0) {
        forward.x = inputs.add(call.x), forward.B = inputs.add(call.B);
        reverse.x = inputs.add(call.out_gradient), reverse.B = inputs.add(call.C);
        forward.chunk_tiles = state_map(inputs, made.before, kWarpRows);
        reverse.chunk_tiles = state_map(inputs, made.gradients, kWarpRows);
    }
    return inputs.run(scan, false);
}

SsdGradientArgs gradient_args(const Prepared& prepared, const Made& made, ChunkSteps* steps) {
    const SsdArgs& scan = prepared.args;
    SsdGradientArgs args{prepared.steps};
    args.steps = steps;
    args.D = scan.D, args.groups = scan.groups, args.channels = scan.channels, args.state_count = scan.states;
    args.tiles_of_head = scan.tiles_of_head;
    args.dx = memory_of(made.dx), args.dB = memory_of(made.dB), args.dC = memory_of(made.dC);
    args.ddt = static_cast<float*>(memory_of(made.ddt)), args.sums = static_cast<float*>(memory_of(made.sums));
    return args;
}

// By ssd/backward.
void run_hopper(Inputs& inputs, const SsdBackwardCall& call, const Made& made, const SsdGradientArgs& shared) {
    const Prepared& prepared = inputs.prepared;
    SsdBackwardArgs args{shared};
    if (prepared.x.numel() > 0) {
        args.x = inputs.add(call.x), args.B = inputs.add(call.B), args.C = inputs.add(call.C);
        args.out_gradient = inputs.add(call.out_gradient);
        args.states = state_map(inputs, made.before, kChunk), args.gradients = state_map(inputs, made.gradients, kChunk);
    }
    Backward::run({.io = prepared.io, .states = prepared.states <= 64 ? 64 : 128}, args, inputs.target);
}
void run_mma(Inputs& inputs, const SsdBackwardCall& call, const Made& made, const SsdGradientArgs& shared) {
    SsdBackwardMmaArgs args{shared};
    if (inputs.prepared.x.numel() > 0) {
        args.x = inputs.add_rows(call.x), args.B = inputs.add_rows(call.B), args.C = inputs.add_rows(call.C);
        args.out_gradient = inputs.add_rows(call.out_gradient);
    }
    args.states = memory_of(made.before), args.gradients = memory_of(made.gradients);
    BackwardMma::run(BackwardMma::choose(inputs.prepared.io, inputs.prepared.states), args, inputs.target);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_backward(const SsdBackwardCall& call) {
    const Checks check{call.name};
    Prepared prepared = prepare_backward(call);
    require_kernel(check, prepared);
    GDN_REQUIRE(check, !call.D || View(*call.D).rank == 1, "D", "(H,)", shape_text(View(*call.D)));
    const int64_t batch = prepared.batch, tokens = prepared.tokens, heads = prepared.heads, channels = prepared.channels,
                  groups = prepared.groups, states = prepared.states;
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(call.name, prepared.x);
    using Sizes = std::vector<int64_t>;
    const auto like_x = [&](const Sizes& sizes) { return new_tensor(call.x, sizes); };
    const auto floats = [&](const Sizes& sizes) { return new_tensor(call.x, sizes, ScalarType::Float); };
    const Sizes group_sizes{batch, tokens, groups, states}, state_sizes{prepared.slots(), heads, channels, states};
    const Made made{.dx = like_x({batch, tokens, heads, channels}),
                    .ddt = floats({batch, tokens, heads}),
                    .dB = like_x(group_sizes),
                    .dC = like_x(group_sizes),
                    .sums = floats({3, prepared.slots(), heads}),
                    .first = new_last_states(prepared),
                    .before = like_x(state_sizes),
                    .gradients = like_x(state_sizes)};
    const auto& [dx, ddt, dB, dC, sums, first, before, gradients] = made;
    if (heads == 0 || channels == 0) {  // no kernel runs
        for (Tensor zeros : {dx, dB, dC, ddt, sums, first}) torch::stable::zero_(zeros);
        return {dx, ddt, dB, dC, sums, first};
    }
    SsdBackwardCall read = call;
    if (prepared.x.numel() > 0)  // copied once, if at all, for three kernels
        for (Given* each : {&read.x, &read.B, &read.C, &read.out_gradient}) *each = tileable(*each);
    Inputs inputs{prepared, target};
    ChunkSteps* const steps = run_passes(inputs, read, made);
    if (const SsdArgs& own = prepared.args; own.cu_seqlens.data != nullptr) {
        const int64_t io_bytes = bytes_of(prepared.io), group_bytes = groups * states * io_bytes;
        common::UncoveredZeros::run({token_rows(dx, heads * channels * io_bytes), token_rows(dB, group_bytes),
                                     token_rows(dC, group_bytes), token_rows(ddt, heads * bytes_of(DType::f32))},
                                    own.cu_seqlens, own.sequences, own.tokens, target);
    }
    const SsdGradientArgs args = gradient_args(prepared, made, steps);
    fits_hopper(target, states) ? run_hopper(inputs, read, made, args) : run_mma(inputs, read, made, args);
    return {dx, ddt, dB, dC, sums, first};
}

GDN_REGISTER(SsdBackwardCall, prepare_backward, run_backward)

}  // namespace
}  // namespace gdn_cuda::ssd
