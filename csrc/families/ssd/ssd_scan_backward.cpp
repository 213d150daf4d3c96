// ssd_scan_backward: the gradients of Mamba-2's scan. ssd/prefill stores the state before each chunk and its gradient after,
// from either end, for ssd/backward.
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "../common/uncovered_zeros.hpp"
#include "backward.hpp"
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
    Prepared prepared = prepare(check, call);
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

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> run_backward(const SsdBackwardCall& call) {
    const Checks check{call.name};
    Prepared prepared = prepare_backward(call);
    require_kernel(check, prepared);
    GDN_REQUIRE(check, prepared.states <= 128, "B", "at most 128 states", shape_text(View(call.B)));
    GDN_REQUIRE(check, !call.D || View(*call.D).rank == 1, "D", "(H,)", shape_text(View(*call.D)));
    const auto [x, io, batch, tokens, heads, channels, groups, states, sequences, _, own, deterministic] = prepared;
    const DeviceScope scope(x.device_index);
    const Target target = target_of(call.name, x);
    using Sizes = std::vector<int64_t>;
    const auto like_x = [&](const Sizes& sizes) { return torch::stable::new_empty(call.x, sizes); };
    const auto floats = [&](const Sizes& sizes) { return torch::stable::new_empty(call.x, sizes, ScalarType::Float); };
    const Sizes group_sizes{batch, tokens, groups, states}, state_sizes{prepared.slots(), heads, channels, states};
    const Tensor dx = like_x({batch, tokens, heads, channels}), dB = like_x(group_sizes), dC = like_x(group_sizes),
                 ddt = floats({batch, tokens, heads}), sums = floats({3, prepared.slots(), heads}),
                 before = like_x(state_sizes), gradients = like_x(state_sizes), first = new_last_states(prepared, call.x);
    if (heads == 0 || channels == 0) {  // no kernel runs
        for (Tensor zeros : {dx, dB, dC, ddt, sums, first}) torch::stable::zero_(zeros);
        return {dx, ddt, dB, dC, sums, first};
    }
    Inputs inputs{prepared, target};
    SsdArgs scan = own;
    auto& [forward, reverse] = scan.passes;
    scan.states_only = true, scan.pass_count = 2;
    ChunkSteps* const steps = inputs.steps(call.x);
    scan.steps = steps;
    forward.chunk_states = memory_of(before), reverse.chunk_states = memory_of(gradients);
    forward.last = {}, reverse.last = prepared.args.passes[0].last;
    if (call.state_gradient)
        reverse.initial = check_states(check, "state_gradient", View(*call.state_gradient), prepared, sequences);
    SsdBackwardArgs args{prepared.steps};
    if (x.numel() > 0) {
        args.x = forward.x = inputs.add(call.x), args.B = forward.B = inputs.add(call.B);
        args.out_gradient = reverse.x = inputs.add(call.out_gradient), args.C = reverse.B = inputs.add(call.C);
        // Tiles of channels x states.
        const auto state_map = [&, heads = heads, channels = channels, states = states, io = io](const Tensor& of) {
            return jit::tile_map({{memory_of(of), heads * channels * states, states, channels * states},
                                  prepared.slots(),
                                  channels,
                                  heads,
                                  states},
                                 io, kChunk, target.ordinal);
        };
        args.states = state_map(before), args.gradients = state_map(gradients);
    }
    inputs.run(scan, false, call.x);
    if (own.cu_seqlens.data != nullptr) {
        const int64_t group_bytes = groups * states * bytes_of(io);
        common::UncoveredZeros::run({token_rows(dx, heads * channels * bytes_of(io)), token_rows(dB, group_bytes),
                                     token_rows(dC, group_bytes), token_rows(ddt, heads * bytes_of(DType::f32))},
                                    own.cu_seqlens, own.sequences, own.tokens, target);
    }
    args.steps = steps;
    args.D = own.D, args.groups = own.groups, args.channels = own.channels, args.state_count = own.states;
    args.tiles_of_head = own.tiles_of_head;
    args.dx = memory_of(dx), args.dB = memory_of(dB), args.dC = memory_of(dC);
    args.ddt = static_cast<float*>(memory_of(ddt)), args.sums = static_cast<float*>(memory_of(sums));
    Backward::run({.io = io, .states = states <= 64 ? 64 : 128}, args, target);
    return {dx, ddt, dB, dC, sums, first};
}

GDN_REGISTER(SsdBackwardCall, prepare_backward, run_backward)

}  // namespace
}  // namespace gdn_cuda::ssd
