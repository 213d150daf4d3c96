// scan/selective_forward on the host: which configuration runs a problem, and its launch.
#pragma once

#include <array>
#include <gdn_cuda/kernels/scan/selective_forward_plan.cuh>
#include <numeric>
#include <string>

#include "../../kernels/spec.hpp"
#include "selective.hpp"

namespace gdn_cuda::scan {

struct SelectiveForwardProblem {
    Transition transition;
    bool is_complex;
    bool is_narrow;  // u, delta, z, delta_a, B and C
    i64 channels;    // of all sequences
};

inline constexpr std::array kSelectiveForwardConfigurations = [] {
    using enum Transition;
    return std::array{
        SelectiveForwardConfig{exponential, false, true, 4, 4},  SelectiveForwardConfig{exponential, false, true, 2, 8},
        SelectiveForwardConfig{exponential, false, false, 4, 4}, SelectiveForwardConfig{exponential, false, false, 2, 8},
        SelectiveForwardConfig{zoh, false, false, 2, 8},         SelectiveForwardConfig{bilinear, false, false, 2, 8},
        SelectiveForwardConfig{s7, false, false, 2, 8},          SelectiveForwardConfig{rglru, false, false, 2, 8},
        SelectiveForwardConfig{exponential, true, false, 2, 8},  SelectiveForwardConfig{zoh, true, false, 2, 8},
        SelectiveForwardConfig{bilinear, true, false, 2, 8}};
}();

// Four states a lane take fewer instructions, eight lanes a channel make twice as many warps.
constexpr SelectiveForwardConfig selective_forward_config(const SelectiveForwardProblem& problem, int multiprocessors) {
    const bool many = problem.channels >= i64{multiprocessors} * 64;
    const bool plain = problem.transition == Transition::exponential && !problem.is_complex;
    return {.transition = problem.transition,
            .is_complex = problem.is_complex,
            .is_narrow = plain && problem.is_narrow,
            .states = plain && many ? 4 : 2,
            .lanes = plain && many ? 4 : 8};
}
inline std::string explain_selective_forward(const SelectiveForwardProblem& problem, const jit::DeviceTraits& device) {
    const SelectiveForwardConfig config = selective_forward_config(problem, device.multiprocessors);
    return fmt::format("{} channels for {} multiprocessors: {} states a lane, {} lanes a channel", problem.channels,
                       device.multiprocessors, config.states, config.lanes);
}

struct SelectiveForward {
    using Config = SelectiveForwardConfig;
    using Args = SelectiveForwardArgs;
    static constexpr const char *family = "scan", *name = "selective_forward", *config_type = "SelectiveForwardConfig",
                                *args_type = "SelectiveForwardArgs";
    static constexpr const char* summary = "selective scan, its states walked in registers";
    static constexpr int min_capability = 80;
    static constexpr bool uses_cutlass = false;

    static std::span<const Config> configurations() { return kSelectiveForwardConfigurations; }
    static int threads(const Config&) { return Config::kThreads; }
    static int shared_bytes(const Config& config) {
        return plan_bytes<kSelectiveForwardConfigurations, SelectiveForwardSharedPlan>(
            config, std::make_index_sequence<kSelectiveForwardConfigurations.size()>());
    }

    static constexpr i64 kMostStride = (i64{1} << 31) - 1;  // in bytes, of tokens and states
    // Whether eight neighbours from a multiple of eight on are 16-byte vectors. Packed sequences begin at any token.
    static bool aligned(const void* data, std::initializer_list<i64> strides, int bytes) {
        bool all = reinterpret_cast<uintptr_t>(data) % 16 == 0;
        for (const i64 stride : strides) all &= stride * bytes % 16 == 0;
        return all;
    }
    static bool vectors(const ChannelRows& x, int bytes, bool along_tokens, bool packed) {
        if (x.token * bytes > kMostStride) return false;
        if (along_tokens) return !packed && x.token == 1 && aligned(x.data, {x.batch, x.channel}, bytes);
        return x.channel == 1 && aligned(x.data, {x.batch, x.token}, bytes);
    }
    static bool vectors(const Coefficients& x, bool packed) {
        const i64 number = x.pair == 0 ? 1 : 2, bytes = bytes_of(x.type);
        if (x.pair > 1 || x.token * bytes > kMostStride || x.n * bytes > kMostStride) return false;
        if (x.n == number) return aligned(x.data, {x.batch, x.group, x.token}, bytes);
        return !packed && x.token == number && aligned(x.data, {x.batch, x.group, x.n}, bytes);
    }

    static void run(const PreparedSelective& prepared, const SelectiveResults& results, const Target& target) {
        const SelectiveInputs& in = prepared.inputs;
        if (in.sequences == 0 || in.dim == 0) return;
        const auto narrow = [](const Coefficients& x) { return !x.varies || x.type != DType::f32; };
        const bool is_narrow = prepared.io != DType::f32 && narrow(in.B) && narrow(in.C);
        const SelectiveForwardProblem problem{transition_of(prepared.discretization), prepared.is_complex, is_narrow,
                                              i64{in.sequences} * in.dim};
        const bool along_tokens = prepared.layout == Layout::tokens, packed = prepared.is_packed();
        const auto span_of = [&](const Coefficients& x) { return x.varies ? in.dim / x.groups : in.dim; };
        const int span = std::gcd(span_of(in.B), span_of(in.C));
        bool rows_are_vectors = along_tokens || span % 8 == 0 || span == in.dim;
        for (const ChannelRows* x : {&in.u, &in.delta, &in.z, &in.delta_a, &results.out})
            rows_are_vectors &= x->data == nullptr || vectors(*x, bytes_of(prepared.io), along_tokens, packed);
        const SelectiveForwardArgs args{
            .in = in,
            .out = results.out,
            .last_state = results.last_state,
            .states = results.states,
            .io = prepared.io,
            .input_times_delta = prepared.discretization == Discretization::mamba,
            .along_tokens = along_tokens,
            .rows_are_vectors = rows_are_vectors,
            .coefficients_are_vectors = in.B.varies && in.C.varies && vectors(in.B, packed) && vectors(in.C, packed),
            .span = span};
        const Config config = selective_forward_config(problem, jit::device_traits(target.ordinal).multiprocessors);
        const i64 blocks = in.dim / args.span * ceil_div(args.span, config.channels());
        launch<SelectiveForward>(config, args, {blocks, in.sequences, 1}, target,
                                 [&](const auto& device) { return explain_selective_forward(problem, device); });
    }
};

}  // namespace gdn_cuda::scan
