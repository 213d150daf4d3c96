// Configuration of gdn/convert_rows, for host and device. Its arguments are those of gdn/move_states.
#pragma once

#include <gdn_cuda/kernels/gdn/move_states_plan.cuh>

namespace gdn_cuda::gdn {

struct ConvertRowsConfig {
    DType from, to;

    constexpr bool operator==(const ConvertRowsConfig&) const = default;

    GDN_FIELDS(from, to)

    static constexpr int kColumns = 8;  // in a thread's vector
    GDN_HOST_DEVICE static constexpr int threads() { return 256; }
    // Vectors that a thread has in flight. Of fp32 they have twice the registers.
    GDN_HOST_DEVICE constexpr int vectors() const { return from == DType::f32 || to == DType::f32 ? 2 : 4; }
    GDN_HOST_DEVICE constexpr int block_elements() const { return kColumns * vectors() * threads(); }
};

}  // namespace gdn_cuda::gdn
