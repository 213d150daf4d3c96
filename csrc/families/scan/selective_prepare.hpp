// selective_scan and its backward: the checked arguments, from which their kernels are launched.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>
#include <gdn_cuda/scan.hpp>
#include <optional>

#include "../../operators/layout.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

inline constexpr i64 kMostStride = (i64{1} << 31) - 1;  // in bytes, along tokens and states

// For u and tensors of its shape. Those that kernels cannot read are copied.
inline bool kernels_can_read_rows(const View& rows, Layout layout) {
    if (rows.numel() == 0) return true;
    if (layout == Layout::tokens) return rows.size(2) <= 1 || rows.strides[2] == 1;
    return (rows.size(1) <= 1 || rows.strides[1] == 1) && rows.stride(2) * bytes_of(*dtype_of(rows)) <= kMostStride;
}
// The layout of most of the tensors; on a tie, that of the first.
inline Layout layout_of_most(std::initializer_list<const View*> all) {
    const auto has = [](const View* rows, Layout layout) { return rows->defined() && layout_of(*rows) == layout; };
    const Layout first = layout_of(**all.begin()), other = first == Layout::tokens ? Layout::channels : Layout::tokens;
    const auto count = [&](Layout layout) {
        return std::ranges::count_if(all, [&](const View* rows) { return has(rows, layout); });
    };
    return count(other) > count(first) ? other : first;
}
// B and C are read along states or along tokens, so one of these strides must be that of contiguous elements.
inline bool kernels_can_read(const Coefficients& x, int state_size, int length) {
    const i64 number = x.pair == 0 ? 1 : 2, bytes = bytes_of(x.type);
    if (!x.varies) return true;
    if (x.pair > 1 || x.token * bytes > kMostStride || x.n * bytes > kMostStride) return false;
    return x.n == number || x.token == number || state_size == 1 || length <= 1;
}

struct PreparedSelective {
    SelectiveInputs inputs;
    View u, delta, z, delta_a;
    DType io = DType::f32;
    Layout layout = Layout::tokens;
    Discretization discretization = Discretization::mamba;
    bool is_complex = false;
    bool can_read_others = true;  // whether kernels can read all tensors not of u's shape without copies

    bool is_packed() const { return inputs.cu_seqlens.data != nullptr; }
    // If not, tensors are copied.
    bool kernels_can_read() const {
        return can_read_others && std::ranges::all_of(std::array{&u, &delta, &z, &delta_a}, [&](const View* rows) {
                   return !rows->defined() || kernels_can_read_rows(*rows, layout);
               });
    }
    // For packed sequences, the most chunks that there can be.
    int64_t chunks() const {
        const int64_t length = inputs.length, chunk = kStateChunk;
        return is_packed() ? length / chunk + inputs.sequences : inputs.sequences * ceil_div(length, chunk);
    }
};

// The outputs of forward. For packed sequences, `out` and `states` are zeroed first, as some tokens and chunks may belong to no
// sequence.
struct SelectiveResults {
    ChannelRows out;
    void* last_state = nullptr;  // (sequences, dim, N), fp32 or complex64
    void* states = nullptr;      // (chunks, dim, N), same dtype: the state before each chunk; null without gradients
};

// The inputs of backward that forward does not have.
struct SelectiveCotangents {
    ChannelRows out;
    const void* last_state = nullptr;  // null: zeros
    const void* states = nullptr;      // SelectiveResults::states
};
// The outputs of backward; absent arguments have null data. For packed sequences, gradients of (batch, dim, L) tensors are
// zeroed first. Gradients of A, D, delta_bias and initial_state are fp32 or complex64, those of B and C have the dtypes of B
// and C; all of these are contiguous.
struct SelectiveGradients {
    ChannelRows u, delta, z, delta_a;
    Coefficients A, B, C;
    float *D = nullptr, *delta_bias = nullptr;
    void* initial_state = nullptr;
};

PreparedSelective prepare_selective(const Checks& check, const SelectiveScan& x);

inline ChannelRows channel_rows(const View& view) {
    return view.defined() ? ChannelRows{view.data, view.stride(0), view.stride(1), view.stride(2)} : ChannelRows{};
}

}  // namespace gdn_cuda::scan
