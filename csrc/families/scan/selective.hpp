// selective_scan and its backward on the host: the checked arguments, which the hosts of their kernels take.
#pragma once

#include <gdn_cuda/kernels/scan/selective_plan.cuh>
#include <gdn_cuda/scan.hpp>

#include "../../operators/tensor.hpp"

namespace gdn_cuda::scan {

// Which elements of u, and so of out, are neighbours in memory.
enum class Layout : int { tokens, channels };
// The channels are: the transposed view of (B, L, D). One token in a contiguous tensor counts as such, too.
inline Layout layout_of(const View& rows) {
    return rows.strides[1] == 1 && !(rows.size(2) > 1 && rows.strides[2] == 1) ? Layout::channels : Layout::tokens;
}
// The others are copied.
inline bool kernels_can_read_rows(const View& rows) {
    return layout_of(rows) == Layout::channels || rows.size(2) <= 1 || rows.strides[2] == 1;
}

struct PreparedSelective {
    SelectiveInputs inputs;
    View u;  // for its device
    DType io = DType::f32;
    Layout layout = Layout::tokens;
    Discretization discretization = Discretization::mamba;
    bool is_complex = false;
    bool kernels_can_read = true;  // where the tensors lie; otherwise they are copied

    bool is_packed() const { return inputs.cu_seqlens.data != nullptr; }
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
