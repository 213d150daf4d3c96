// Torch operators (torch.ops.gdn_cuda_api) that call the C++ API of the structured operators, so that Python can test it.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

Tensor cauchy_kernel(const Tensor& v, const Tensor& omega, const Tensor& lambd, const OptionalTensor& out) {
    return gdn_cuda::cauchy_kernel({.v = v, .omega = omega, .lambd = lambd, .out = out});
}
Tensor cauchy_conj(const Tensor& v, const Tensor& z, const Tensor& w, const OptionalTensor& out) {
    return gdn_cuda::cauchy_conj({.v = v, .z = z, .w = w, .out = out});
}
Tensor log_vandermonde(const Tensor& v, const Tensor& x, int64_t L, const OptionalTensor& out) {
    return gdn_cuda::log_vandermonde({.v = v, .x = x, .L = L, .out = out});
}
Tensor log_vandermonde_transpose(const Tensor& u, const Tensor& v, const Tensor& x) {
    return gdn_cuda::log_vandermonde_transpose({.u = u, .v = v, .x = x});
}
Tensor toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return gdn_cuda::toeplitz_matvec({.c = c, .r = r, .x = x, .out = out});
}
Tensor toeplitz_matvec_transpose(const Tensor& c, const Tensor& r, const Tensor& x, const OptionalTensor& out) {
    return gdn_cuda::toeplitz_matvec_transpose({.c = c, .r = r, .x = x, .out = out});
}
std::tuple<Tensor, Tensor> toeplitz_solve_ex(const Tensor& c, const Tensor& r, const Tensor& b) {
    return gdn_cuda::toeplitz_solve_ex({.c = c, .r = r, .b = b});
}
std::tuple<Tensor, Tensor> toeplitz_solve_symmetric_ex(const Tensor& c, const Tensor& b, bool assume_positive) {
    return gdn_cuda::toeplitz_solve_symmetric_ex({.c = c, .b = b, .assume_positive = assume_positive});
}

Tensor toeplitz_solve(const Tensor& c, const Tensor& r, const Tensor& b) {
    return gdn_cuda::toeplitz_solve({.c = c, .r = r, .b = b});
}
Tensor toeplitz_solve_symmetric(const Tensor& c, const Tensor& b) {
    return gdn_cuda::toeplitz_solve_symmetric({.c = c, .b = b});
}
std::tuple<Tensor, Tensor> gs_compute_generators(const Tensor& c, const Tensor& r) {
    return gdn_cuda::gs_compute_generators({.c = c, .r = r});
}
Tensor toeplitz_inverse_apply(const Tensor& gs_u, const Tensor& gs_v, const Tensor& x) {
    return gdn_cuda::toeplitz_inverse_apply({.gs_u = gs_u, .gs_v = gs_v, .x = x});
}

// A sum with pinned points and poles, and these.
std::tuple<Tensor, Tensor, Tensor> pinned_cauchy_kernel(const Tensor& v, const Tensor& omega, const Tensor& lambd) {
    gdn_cuda::CauchyPin pin = gdn_cuda::cauchy_pin_l2({.omega = omega, .lambd = lambd});
    const Tensor sum = gdn_cuda::cauchy_kernel({.v = v, .omega = pin.omega, .lambd = pin.lambd});
    gdn_cuda::CauchyPin moved = std::move(pin);
    pin.release();  // the window has already been released
    moved.release();
    moved.release();
    return {sum, moved.omega, moved.lambd};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("cauchy_kernel(Tensor v, Tensor omega, Tensor lambd, Tensor? out=None) -> Tensor");
    m.def("cauchy_conj(Tensor v, Tensor z, Tensor w, Tensor? out=None) -> Tensor");
    m.def("log_vandermonde(Tensor v, Tensor x, int L, Tensor? out=None) -> Tensor");
    m.def("log_vandermonde_transpose(Tensor u, Tensor v, Tensor x) -> Tensor");
    m.def("toeplitz_matvec(Tensor c, Tensor r, Tensor x, Tensor? out=None) -> Tensor");
    m.def("toeplitz_matvec_transpose(Tensor c, Tensor r, Tensor x, Tensor? out=None) -> Tensor");
    m.def("toeplitz_solve_ex(Tensor c, Tensor r, Tensor b) -> (Tensor, Tensor)");
    m.def("toeplitz_solve_symmetric_ex(Tensor c, Tensor b, bool assume_positive=False) -> (Tensor, Tensor)");
    m.def("toeplitz_solve(Tensor c, Tensor r, Tensor b) -> Tensor");
    m.def("toeplitz_solve_symmetric(Tensor c, Tensor b) -> Tensor");
    m.def("gs_compute_generators(Tensor c, Tensor r) -> (Tensor, Tensor)");
    m.def("toeplitz_inverse_apply(Tensor gs_u, Tensor gs_v, Tensor x) -> Tensor");
    m.def("pinned_cauchy_kernel(Tensor v, Tensor omega, Tensor lambd) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("cauchy_kernel", TORCH_BOX(&cauchy_kernel));
    m.impl("cauchy_conj", TORCH_BOX(&cauchy_conj));
    m.impl("log_vandermonde", TORCH_BOX(&log_vandermonde));
    m.impl("log_vandermonde_transpose", TORCH_BOX(&log_vandermonde_transpose));
    m.impl("toeplitz_matvec", TORCH_BOX(&toeplitz_matvec));
    m.impl("toeplitz_matvec_transpose", TORCH_BOX(&toeplitz_matvec_transpose));
    m.impl("toeplitz_solve_ex", TORCH_BOX(&toeplitz_solve_ex));
    m.impl("toeplitz_solve_symmetric_ex", TORCH_BOX(&toeplitz_solve_symmetric_ex));
    m.impl("toeplitz_solve", TORCH_BOX(&toeplitz_solve));
    m.impl("toeplitz_solve_symmetric", TORCH_BOX(&toeplitz_solve_symmetric));
    m.impl("gs_compute_generators", TORCH_BOX(&gs_compute_generators));
    m.impl("toeplitz_inverse_apply", TORCH_BOX(&toeplitz_inverse_apply));
    m.impl("pinned_cauchy_kernel", TORCH_BOX(&pinned_cauchy_kernel));
}
