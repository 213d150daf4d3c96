// The gradients of selective_scan on CUDA: workspace for partial sums, and a call's launches over groups of states and of
// sequences.
#pragma once

#include <numeric>

#include "selective_backward.hpp"
#include "selective_backward_strides.hpp"
#include "selective_backward_sums.hpp"
#include "selective_prepare.hpp"
#include "selective_segments_run.hpp"
#include "selective_vectors.hpp"
#include "variables.hpp"

namespace gdn_cuda::scan {

inline void run_selective_backward(const PreparedSelective& prepared, const SelectiveCotangents& cotangents,
                                   const SelectiveGradients& to, const Target& target, const Tensor& like) {
    const SelectiveInputs& in = prepared.inputs;
    if (in.dim == 0) return;
    require_strides(prepared, cotangents);
    const bool packed = prepared.is_packed();
    const i64 parts = prepared.is_complex ? 2 : 1, channels_per_B_group = in.B.varies ? in.dim / in.B.groups : in.dim,
              channels_per_C_group = in.C.varies ? in.dim / in.C.groups : in.dim;
    const SelectiveBackwardProblem problem{.transition = transition_of(prepared.discretization),
                                           .is_complex = prepared.is_complex,
                                           .varies = in.B.varies && in.C.varies,
                                           .is_narrow = prepared.io != DType::f32,
                                           .state_size = in.state_size,
                                           .sequences = in.sequences,
                                           .channels_per_span = std::gcd(channels_per_B_group, channels_per_C_group),
                                           .dim = in.dim};
    const SelectiveBackwardConfig config = selective_backward_config(problem);
    const i64 blocks = selective_backward_blocks(problem, config), columns = config.columns();
    // For one row of the batch.
    const i64 sums_per_row = blocks * in.length * columns, varying = (in.B.varies ? 1 : 0) + (in.C.varies ? 1 : 0);
    const i64 at_a_time =
        sequences_at_a_time(in.sequences, packed ? 0 : varying * sums_per_row * static_cast<i64>(sizeof(float)));
    const i64 rows = packed ? 1 : at_a_time;

    const bool along_tokens = prepared.layout == Layout::tokens;
    bool rows_are_vectors = along_tokens || problem.channels_per_span % 8 == 0 || problem.channels_per_span == in.dim;
    for (const ChannelRows* x : {&in.u, &in.delta, &in.z, &in.delta_a, &cotangents.out, &to.u, &to.delta, &to.z, &to.delta_a})
        rows_are_vectors &= x->data == nullptr || has_vectors(*x, bytes_of(prepared.io), along_tokens, packed);
    bool coefficients_are_vectors = true;
    for (const Coefficients* x : {&in.B, &in.C}) coefficients_are_vectors &= !x->varies || has_vectors(*x, packed);

    CallMemory memory(like);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    Segments segments = split_backward(problem, split_problem(prepared), device, kSegmentsVariable.value());
    const bool in_parallel = segments.count > 1;
    if (!in_parallel)
        segments = split_in_turns(split_problem(prepared), at_a_time * blocks,
                                  i64{device.multiprocessors} * config.most_blocks(), kTurnsVariable.value());
    const bool in_turns = !in_parallel && segments.count > 1;
    SelectivePiecesArgs reversed =
        reversed_pieces(prepared, cotangents.out, rows_are_vectors, static_cast<int>(problem.channels_per_span));
    reversed.segments = segments;
    const void* gradients_after_segments =
        in_turns ? cotangents.last_state : states_before_segments(prepared, cotangents.last_state, reversed, memory, target);
    SelectiveBackwardArgs args{.in = in,
                               .io = prepared.io,
                               .input_times_delta = prepared.discretization != Discretization::dirac,
                               .along_tokens = along_tokens,
                               .rows_are_vectors = rows_are_vectors,
                               .coefficients_are_vectors = coefficients_are_vectors,
                               .grad_out = cotangents.out,
                               .states = cotangents.states,
                               .grad_last_state = gradients_after_segments,
                               .du = to.u,
                               .ddelta = to.delta,
                               .dz = to.z,
                               .ddelta_a = to.delta_a,
                               .dinitial_state = to.initial_state,
                               .segments = segments,
                               .chunks = prepared.chunks(),
                               .channels_per_span = static_cast<int>(problem.channels_per_span)};
    const i64 rows_of_sums = static_cast<i64>(segments.count) * in.sequences,
              poles = rows_of_sums * in.dim * in.state_size * parts, channels = rows_of_sums * in.dim;
    args.dA = memory.floats(poles);
    if (in_turns) args.turns = {.done = memory.counts(rows_of_sums * blocks), .states = memory.floats(poles)};
    if (!in.B.varies) args.dB_constant = memory.floats(poles);
    if (!in.C.varies) args.dC_constant = memory.floats(poles);
    if (to.D != nullptr) args.dD = memory.floats(channels);
    if (to.delta_bias != nullptr) args.ddelta_bias = memory.floats(channels);
    // Zeroed for packed sequences, as some tokens may belong to none.
    if (in.B.varies) args.dB = memory.floats(rows * sums_per_row, packed);
    if (in.C.varies) args.dC = memory.floats(rows * sums_per_row, packed);
    if (in.state_size > config.group()) args.earlier = memory.floats(i64{4} * in.batch * in.dim * in.length, packed);
    args.partials_B = static_cast<int>(in.B.varies ? blocks / in.B.groups : 1);
    args.partials_C = static_cast<int>(in.C.varies ? blocks / in.C.groups : 1);

    SelectiveBackwardSumsArgs sums;  // the last launch's; sums over all launches are added there
    const auto add_up = [&] {
        SelectiveBackwardSums::run(sums, target);
        sums.count = 0;
    };
    for (int first_state = 0; first_state < in.state_size; first_state += config.group()) {
        args.first_state = first_state;
        if (in_turns) ++args.turns.wanted;
        args.first_pass = first_state == 0;
        args.last_pass = first_state + config.group() >= in.state_size;
        const int states = std::min(config.group(), in.state_size - first_state);
        for (i64 first = 0; first < in.sequences; first += at_a_time) {
            const i64 sequences = std::min<i64>(at_a_time, in.sequences - first);
            args.first_sequence = static_cast<int>(first);
            args.rows = static_cast<int>(packed ? 1 : sequences);
            args.first_row = static_cast<int>(packed ? 0 : first);
            add_up();
            SelectiveBackward::run(problem, segments, args, sequences, target);
            if (packed && first + sequences < in.sequences) continue;  // later sequences add to the same row
            const auto varying_sums = [&](const float* from, const Coefficients& gradient, int partials) {
                Coefficients part = gradient;
                const i64 number = args.first_row * part.batch + first_state * part.n;
                part.data = static_cast<char*>(part.data) + number * bytes_of(part.type);
                SelectiveBackwardSums::add(sums, {.from = from,
                                                  .to = part,
                                                  .partials = partials,
                                                  .rows = args.rows,
                                                  .groups = gradient.groups,
                                                  .tokens = in.length,
                                                  .columns = static_cast<int>(states * parts),
                                                  .pitch = static_cast<int>(columns)});
            };
            if (in.B.varies) varying_sums(args.dB, to.B, args.partials_B);
            if (in.C.varies) varying_sums(args.dC, to.C, args.partials_C);
        }
    }
    const auto constant_sums = [&](const float* from, const Coefficients& gradient, i64 row) {
        SelectiveBackwardSums::add(sums, {.from = from,
                                          .to = gradient,
                                          .partials = static_cast<int>(rows_of_sums),
                                          .groups = in.dim,
                                          .columns = static_cast<int>(row),
                                          .pitch = static_cast<int>(row)});
    };
    const auto channel_sums = [&](const float* from, float* gradient) {
        if (gradient != nullptr) constant_sums(from, {.data = gradient, .groups = in.dim, .group = 1}, 1);
    };
    constant_sums(args.dA, to.A, in.state_size * parts);
    if (!in.B.varies) constant_sums(args.dB_constant, to.B, in.state_size * parts);
    if (!in.C.varies) constant_sums(args.dC_constant, to.C, in.state_size * parts);
    channel_sums(args.dD, to.D);
    channel_sums(args.ddelta_bias, to.delta_bias);
    add_up();
}

}  // namespace gdn_cuda::scan
