// transposed: x.mT in a new contiguous tensor, which layers and gradients of operators make.
#include "transposed.hpp"

#include <torch/csrc/stable/ops.h>

#include <limits>

namespace gdn_cuda::common {
namespace {

struct TransposedCall {
    static constexpr const char* name = "transposed";
    Given x;

    GDN_FIELDS(x)
};

View prepare_transposed(const TransposedCall& call) {
    const View x(call.x);
    const Checks check{call.name};
    check.rank("x", x, 3, "(B, rows, columns)");
    GDN_REQUIRE(check, x.dtype != torch_numbers.boolean, "x", "numbers", dtype_name(x));
    return x;
}

bool kernel_takes(const View& x) {
    const auto type = dtype_of(x);
    const int bytes = type ? bytes_of(*type) : 0;
    const int64_t rows = x.size(1), columns = x.size(2), most = std::numeric_limits<int>::max();
    if ((bytes != 2 && bytes != 4) || x.numel() == 0 || (columns > 1 && x.stride(2) != 1)) return false;
    if (rows > most || columns > most) return false;
    return fits_grid(TransposedCopy::blocks({.rows = static_cast<int>(rows), .columns = static_cast<int>(columns)}, x.size(0)));
}

Tensor run_transposed(const TransposedCall& call) {
    const View x = prepare_transposed(call);
    const DeviceScope scope(x.device_index);
    const Tensor x_mT = torch::stable::transpose(call.x, 1, 2);
    if (kernel_takes(x)) return transposed(x_mT, Layout::tokens, target_of(call.name, x));
    Tensor copy = empty_rows(x_mT, Layout::tokens);  // torch's contiguous() returns a view if that is contiguous
    return torch::stable::copy_(copy, x_mT);
}

GDN_REGISTER(TransposedCall, prepare_transposed, run_transposed)

}  // namespace
}  // namespace gdn_cuda::common
