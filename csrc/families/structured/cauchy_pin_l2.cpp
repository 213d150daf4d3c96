// The public C++ function cauchy_pin_l2, which keeps points and poles of Cauchy sums in L2. gdn_cuda/structured/l2.py is its
// Python counterpart.
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <gdn_cuda/structured.hpp>

#include "../../jit/l2_window.hpp"
#include "../../operators/operator.hpp"

namespace gdn_cuda {
namespace {

// Byte range from the start of the first to the end of the last of two dense tensors; empty tensors are ignored.
std::pair<const char*, size_t> range_of(const Tensor& omega, const Tensor& lambd) {
    const char *first = nullptr, *last = nullptr;
    for (const Tensor* tensor : {&omega, &lambd}) {
        const View view(*tensor);
        if (view.numel() == 0) continue;
        const auto* base = static_cast<const char*>(view.data);
        const char* end = base + view.numel() * bytes_of(*dtype_of(view));
        first = first == nullptr ? base : std::min(first, base);
        last = std::max(last, end);
    }
    return {first, static_cast<size_t>(last - first)};
}

// Copies x into `room` from element `start` on.
Tensor copied(const Tensor& x, Tensor room, int64_t start) {
    const View view(x);
    Tensor part =
        torch::stable::view(torch::stable::narrow(room, 0, start, view.numel()), {view.sizes, static_cast<size_t>(view.rank)});
    return torch::stable::copy_(part, x);
}

}  // namespace

CauchyPin cauchy_pin_l2(const CauchyPoints& x) {
    const Checks check{"cauchy_pin_l2"};
    require_given(check.function, x);
    const Tensor &omega = x.omega, &lambd = x.lambd;
    const View points(omega), poles(lambd);
    GDN_REQUIRE(check, points.is_cuda(), "omega", "a CUDA tensor", device_text(points));
    check.device("lambd", poles, points, "omega");
    const DType type = check.dtype("omega", points, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128});
    check.dtype("lambd", poles, {type});

    const DeviceScope scope(points.device_index);
    CauchyPin pin{plain(omega), plain(lambd), {nullptr, [](void* window) { delete static_cast<jit::L2Window*>(window); }}};
    auto [base, bytes] = range_of(pin.omega, pin.lambd);
    const bool dense = View(pin.omega).contiguous_tail(points.rank) && View(pin.lambd).contiguous_tail(poles.rank);
    if (!dense || bytes > jit::most_l2_window_bytes(points.device_index)) {
        const Tensor room = new_tensor(omega, {points.numel() + poles.numel()});
        pin.omega = copied(omega, room, 0);
        pin.lambd = copied(lambd, room, points.numel());
        std::tie(base, bytes) = range_of(pin.omega, pin.lambd);
    }
    const Target target = target_of(check.function, points);
    pin.window.reset(new jit::L2Window(target.ordinal, target.stream, base, bytes));
    return pin;
}

}  // namespace gdn_cuda
