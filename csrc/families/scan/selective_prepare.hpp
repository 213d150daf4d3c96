// selective_scan and its backward on the host: the checked arguments, which the hosts of their kernels take.
#pragma once

#include <algorithm>
#include <array>
#include <gdn_cuda/kernels/scan/selective/inputs.cuh>
#include <gdn_cuda/scan.hpp>
#include <optional>

#include "../../operators/layout.hpp"
#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

inline constexpr i64 kMostStride = (i64{1} << 31) - 1;  // in bytes, of tokens and states

// Of u and what is shaped like it: tensors in the other layout are copied.
inline bool kernels_can_read_rows(const View& rows, Layout layout) {
    if (rows.numel() == 0) return true;
    if (layout == Layout::tokens) return rows.size(2) <= 1 || rows.strides[2] == 1;
    return (rows.size(1) <= 1 || rows.strides[1] == 1) && rows.stride(2) * bytes_of(*dtype_of(rows)) <= kMostStride;
}
// That of most tensors, or of the first.
inline Layout layout_of_most(std::initializer_list<const View*> all) {
    const auto has = [](const View* rows, Layout layout) { return rows->defined() && layout_of(*rows) == layout; };
    const Layout first = layout_of(**all.begin()), other = first == Layout::tokens ? Layout::channels : Layout::tokens;
    const auto count = [&](Layout layout) {
        return std::ranges::count_if(all, [&](const View* rows) { return has(rows, layout); });
    };
    return count(other) > count(first) ? other : first;
}
// B and C are read along states or along tokens.
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
    bool can_read_others = true;  // what is not like u, where it lies

    bool is_packed() const { return inputs.cu_seqlens.data != nullptr; }
    // Otherwise tensors are copied.
    bool kernels_can_read() const {
        return can_read_others && std::ranges::all_of(std::array{&u, &delta, &z, &delta_a}, [&](const View* rows) {
                   return !rows->defined() || kernels_can_read_rows(*rows, layout);
               });
    }
    // As many as there can be where sequences are packed.
    int64_t chunks() const {
        const int64_t length = inputs.length, chunk = kStateChunk;
        return is_packed() ? length / chunk + inputs.sequences : inputs.sequences * ceil_div(length, chunk);
    }
};

// Where forward writes. Where sequences are packed, `out` and `states` are zeros before, as tokens and chunks may remain that
// belong to no sequence.
struct SelectiveResults {
    ChannelRows out;
    void* last_state = nullptr;  // (sequences, dim, N), fp32 or complex64
    void* states = nullptr;      // (chunks, dim, N) likewise: the state before each chunk; null if backward is not expected
};

// What backward reads besides the inputs.
struct SelectiveCotangents {
    ChannelRows out;
    const void* last_state = nullptr;  // null: zeros
    const void* states = nullptr;      // as forward wrote them
};
// Where backward writes; absent arguments have null data. Gradients of (batch, dim, L) tensors are zeros before where sequences
// are packed. Those of A, D, delta_bias and initial_state are fp32 or complex64, those of B and C as B and C; all contiguous.
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
