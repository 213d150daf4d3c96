// Hyena's operators of the C++ API as torch operators of their own, so that Python can call them: torch.ops.gdn_cuda_api.
#include <torch/csrc/stable/library.h>

#include <gdn_cuda/api.hpp>

namespace {

using gdn_cuda::OptionalTensor;
using gdn_cuda::Tensor;

std::tuple<Tensor, Tensor> hyena_short(const Tensor& x1, const Tensor& x2, const Tensor& v, const Tensor& weight,
                                       const OptionalTensor& bias, const OptionalTensor& state) {
    return gdn_cuda::hyena_short(
        {.x1 = x1, .x2 = x2, .v = v, .weight = weight, .bias = bias, .initial_state = state, .gated_bias = true});
}
std::tuple<Tensor, Tensor> hyena_medium(const Tensor& x1, const Tensor& x2, const Tensor& v, const Tensor& weight,
                                        const Tensor& bias, const OptionalTensor& state) {
    return gdn_cuda::hyena_medium({.x1 = x1, .x2 = x2, .v = v, .weight = weight, .bias = bias, .initial_state = state});
}
std::tuple<Tensor, Tensor> hyena_long(const Tensor& x1, const Tensor& x2, const Tensor& v, const Tensor& residues,
                                      const Tensor& log_poles, const Tensor& bias, const OptionalTensor& state) {
    return gdn_cuda::hyena_long(
        {.x1 = x1, .x2 = x2, .v = v, .residues = residues, .log_poles = log_poles, .bias = bias, .initial_state = state});
}
Tensor hyena_filter(const Tensor& residues, const Tensor& log_poles, int64_t L) {
    return gdn_cuda::hyena_filter({.residues = residues, .log_poles = log_poles, .L = L});
}
Tensor hyena_fir_step(const Tensor& u, const Tensor& state, const Tensor& weight, const OptionalTensor& slots) {
    return gdn_cuda::hyena_fir_step(
        {.u = u, .fir_state = state, .weight = weight, .flip_filter = true, .state_indices = slots});
}
Tensor hyena_modal_step(const Tensor& x2, const Tensor& x1, const Tensor& v, const Tensor& D, const Tensor& residues,
                        const Tensor& log_poles, const Tensor& state, const OptionalTensor& slots) {
    return gdn_cuda::hyena_modal_step({.x2 = x2,
                                       .x1 = x1,
                                       .v = v,
                                       .D = D,
                                       .residues = residues,
                                       .log_poles = log_poles,
                                       .state = state,
                                       .state_indices = slots});
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda_api, m) {
    m.def("hyena_short(Tensor x1, Tensor x2, Tensor v, Tensor weight, Tensor? bias, Tensor? state) -> (Tensor, Tensor)");
    m.def("hyena_medium(Tensor x1, Tensor x2, Tensor v, Tensor weight, Tensor bias, Tensor? state) -> (Tensor, Tensor)");
    m.def(
        "hyena_long(Tensor x1, Tensor x2, Tensor v, Tensor residues, Tensor log_poles, Tensor bias, Tensor? state) -> "
        "(Tensor, Tensor)");
    m.def("hyena_filter(Tensor residues, Tensor log_poles, int L) -> Tensor");
    m.def("hyena_fir_step(Tensor u, Tensor(a!) state, Tensor weight, Tensor? slots) -> Tensor");
    m.def(
        "hyena_modal_step(Tensor x2, Tensor x1, Tensor v, Tensor D, Tensor residues, Tensor log_poles, Tensor(a!) state, "
        "Tensor? slots) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda_api, CompositeExplicitAutograd, m) {
    m.impl("hyena_short", TORCH_BOX(&hyena_short));
    m.impl("hyena_medium", TORCH_BOX(&hyena_medium));
    m.impl("hyena_long", TORCH_BOX(&hyena_long));
    m.impl("hyena_filter", TORCH_BOX(&hyena_filter));
    m.impl("hyena_fir_step", TORCH_BOX(&hyena_fir_step));
    m.impl("hyena_modal_step", TORCH_BOX(&hyena_modal_step));
}
