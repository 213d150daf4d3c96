// Checks causal_conv1d's arguments and fills its kernels' arguments.
#pragma once

#include <vector>

#include "../../operators/layout.hpp"
#include "../../operators/packed.hpp"
#include "../../operators/tensor.hpp"
#include "causal_conv_problem.hpp"

namespace gdn_cuda::conv {

struct CausalGiven {
    const Tensor &x, &weight;
    const OptionalTensor &bias, &seq_idx, &cu_seqlens;
    bool silu;
};

struct PreparedCausal {
    View x;
    int64_t sequences;
    CausalProblem problem{};
    CausalArgs args{};

    std::vector<int64_t> states_shape() const { return {sequences, x.size(1), args.taps - 1}; }
};

// Tiles and their halos end below 2^31.
constexpr int64_t kCausalMostTokens = (int64_t{1} << 31) - 4096;

inline CausalTensor tensor_of(const View& view) {
    return {view.data, view.stride(0), view.stride(1), view.stride(2)};
}
inline CausalStates states_of(const View& view) {  // (sequence or slot, channel, position)
    return {tagged(view), view.stride(0), view.stride(1), view.stride(2), static_cast<int>(view.size(2))};
}

// Whether rows (of channels or of tokens) are whole aligned 16-byte vectors.
inline bool has_vectors(const PreparedCausal& prepared, const View& view) {
    const int along = prepared.problem.channels_last ? 1 : 2, across = 3 - along;
    const int64_t bytes = bytes_of(prepared.problem.io);
    const auto whole = [&](int64_t elements) { return elements * bytes % 16 == 0; };
    return view.strides[along] == 1 && whole(view.size(along)) && whole(view.stride(0)) && whole(view.stride(across)) &&
           reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

// Dtypes of weights and of states.
inline std::initializer_list<DType> number_types(const View& x) {
    static constexpr std::initializer_list<DType> on_gpu{DType::f32, DType::bf16, DType::f16},
        on_cpu{DType::f32, DType::bf16, DType::f16, DType::f64};
    return dtype_of(x) == DType::f64 ? on_cpu : on_gpu;
}
inline std::initializer_list<DType> state_types(const View& x) {
    return number_types(x);
}

inline PreparedCausal prepare_inputs(const Checks& check, const CausalGiven& given) {
    const View x(given.x), weight(given.weight), bias = view_of(given.bias), seq_idx = view_of(given.seq_idx),
                                                 cu_seqlens = view_of(given.cu_seqlens);
    check.rank("x", x, 3, "(B, D, L)");
    const DType io = check.number("x", x);
    check.rank("weight", weight, 2, "(D, W)");
    check.dtype("weight", weight, number_types(x));
    check.device("weight", weight, x, "x");
    const int64_t taps = weight.size(1);
    check.shape("weight", weight, {x.size(1), taps}, "(D, W)");
    GDN_REQUIRE(check, taps >= 1 && taps <= kCausalMostTaps, "weight", fmt::format("W from 1 to {}", kCausalMostTaps),
                shape_text(weight));
    PreparedCausal prepared{.x = x, .sequences = x.size(0)};
    CausalArgs& args = prepared.args;
    if (bias.defined()) {
        check.shape("bias", bias, {x.size(1)}, "(D,)");
        check.dtype("bias", bias, number_types(x));
        check.device("bias", bias, x, "x");
        args.bias = tagged(bias);
        args.bias_channel = bias.stride(0);
    }
    CausalSequenceArgs& sequences = args.sequences;
    args.tokens = sequences.tokens = check.count("x", "tokens", x.size(2), kCausalMostTokens);
    if (cu_seqlens.defined()) {
        GDN_REQUIRE(check, x.size(0) == 1, "x", "(1, D, L), as cu_seqlens is given", shape_text(x));
        GDN_REQUIRE(check, !seq_idx.defined(), "seq_idx", "None with cu_seqlens", shape_text(seq_idx));
        check_cu_seqlens(check, cu_seqlens, x.size(2), x, "x");
        prepared.sequences = cu_seqlens.size(0) - 1;
        sequences.cu_seqlens = tagged(cu_seqlens);
    }
    if (seq_idx.defined()) {
        check.shape("seq_idx", seq_idx, {x.size(0), x.size(2)}, "(B, L)");
        check.dtype("seq_idx", seq_idx, {DType::i32, DType::i64});
        check.device("seq_idx", seq_idx, x, "x");
        sequences.seq_idx = tagged(seq_idx);
        sequences.seq_idx_batch = seq_idx.stride(0);
        sequences.seq_idx_token = seq_idx.stride(1);
    }
    sequences.sequences = check.count("cu_seqlens", "sequences", prepared.sequences);
    args.x = tensor_of(x);
    args.weight = tagged(weight);
    args.weight_channel = weight.stride(0);
    args.weight_tap = weight.stride(1);
    args.batches = check.count("x", "sequences", x.size(0));
    args.channels = check.count("x", "channels", x.size(1));
    args.taps = static_cast<int>(taps);
    args.silu = given.silu;
    prepared.problem = {.io = io,
                        .channels_last = layout_of(x) == Layout::channels,
                        .taps = taps,
                        .vectors = false,
                        .sequences = cu_seqlens.defined() || seq_idx.defined()};
    return prepared;
}

inline void set_initial_states(const Checks& check, PreparedCausal& prepared, const View& initial) {
    const View& x = prepared.x;
    check.shape("initial_states", initial, {prepared.sequences, x.size(1), prepared.args.taps - 1},
                "(B or sequences, D, W − 1)");
    check.dtype("initial_states", initial, state_types(x));
    check.device("initial_states", initial, x, "x");
    prepared.args.sequences.initial = states_of(initial);
    prepared.problem.sequences = true;
}

}  // namespace gdn_cuda::conv
