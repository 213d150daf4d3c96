// selective_scan on CUDA: kernel arguments and launches.
#pragma once

#include <numeric>

#include "selective_forward.hpp"
#include "selective_lanes.hpp"
#include "selective_prepare.hpp"
#include "selective_segments_run.hpp"
#include "selective_vectors.hpp"
#include "variables.hpp"

namespace gdn_cuda::scan {

inline void run_selective_forward(const PreparedSelective& prepared, const SelectiveResults& results, const Target& target,
                                  const Tensor& like) {
    SelectiveInputs in = prepared.inputs;
    in.B = with_unit_stride(in.B, in.state_size), in.C = with_unit_stride(in.C, in.state_size);
    if (in.dim == 0 || in.sequences == 0) return;
    const bool along_tokens = prepared.layout == Layout::tokens, packed = prepared.is_packed();
    const auto is_narrow = [](const Coefficients& x) { return !x.varies || x.type != DType::f32; };
    const auto channels_of_group = [&](const Coefficients& x) { return x.varies ? in.dim / x.groups : in.dim; };
    const int span = std::gcd(channels_of_group(in.B), channels_of_group(in.C));
    bool rows_are_aligned = along_tokens || span % 8 == 0 || span == in.dim;
    for (const ChannelRows& x : {in.u, in.delta, in.z, results.out})
        rows_are_aligned &= x.data == nullptr || has_vectors(x, bytes_of(prepared.io), along_tokens, packed);
    const SelectiveForwardProblem problem{.transition = transition_of(prepared.discretization),
                                          .is_complex = prepared.is_complex,
                                          .is_narrow = prepared.io != DType::f32 && is_narrow(in.B) && is_narrow(in.C),
                                          .states = in.state_size,
                                          .channels = i64{in.sequences} * in.dim};
    const Segments segments = split_forward(problem, split_problem(prepared), in.dim, span, jit::device_traits(target.ordinal),
                                            kSegmentsVariable.value());
    const auto are_vectors_along_tokens = [&](const Coefficients& x) { return x.n != 1 && has_vectors(x, packed); };
    if (problem.transition == Transition::exponential && !problem.is_complex && problem.is_narrow && along_tokens &&
        rows_are_aligned && in.length % 8 == 0 && in.delta_a.data == nullptr && are_vectors_along_tokens(in.B) &&
        are_vectors_along_tokens(in.C) && segments.count == 1 && in.sequences <= 65535)
        if (const auto config = selective_lanes_config(problem, jit::device_traits(target.ordinal).multiprocessors)) {
            CallMemory memory(like);
            SelectiveLanesArgs args{.in = in,
                                    .out = results.out,
                                    .last_state = results.last_state,
                                    .states = results.states,
                                    .io = prepared.io,
                                    .input_times_delta = prepared.discretization == Discretization::mamba,
                                    .span = span};
            const i64 blocks = selective_lanes_blocks(*config, in.dim, span);
            args.segments =
                split_in_turns(split_problem(prepared), blocks * in.sequences,
                               i64{jit::device_traits(target.ordinal).multiprocessors} * config->blocks_per_multiprocessor(),
                               kTurnsVariable.value(), config->tile());
            if (args.segments.count > 1) {
                const i64 rows = i64{args.segments.count} * in.sequences;
                args.turns = {
                    .done = memory.counts(rows * blocks), .wanted = 1, .states = memory.floats(rows * in.dim * in.state_size)};
            }
            return SelectiveLanes::run(*config, args, target);
        }
    CallMemory memory(like);
    SelectiveForwardArgs args{.in = in,
                              .out = results.out,
                              .last_state = results.last_state,
                              .states = results.states,
                              .chunks = prepared.chunks(),
                              .segments = segments,
                              .io = prepared.io,
                              .input_times_delta = prepared.discretization == Discretization::mamba,
                              .along_tokens = along_tokens,
                              .rows_are_aligned = rows_are_aligned,
                              .coefficients_are_aligned = has_vectors(in.B, packed) && has_vectors(in.C, packed),
                              .span = span};
    args.in.initial_state = states_before_segments(prepared, in.initial_state,
                                                   {.in = in,
                                                    .io = prepared.io,
                                                    .input_times_delta = args.input_times_delta,
                                                    .along_tokens = along_tokens,
                                                    .rows_are_aligned = rows_are_aligned,
                                                    .coefficients_are_aligned = has_vectors(in.B, packed),
                                                    .span = span,
                                                    .segments = segments},
                                                   memory, target);
    args.running = segments.count == 1 ? results.last_state : const_cast<void*>(args.in.initial_state);
    SelectiveForward::run(problem, args, target);
}

}  // namespace gdn_cuda::scan
