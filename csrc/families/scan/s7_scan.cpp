// s7_scan and its gradients: products by B and C around the recurrence of the states.
#include <gdn_cuda/scan.hpp>
#include <vector>

#include "../../operators/operator.hpp"
#include "../../operators/packed.hpp"
#include "s7.hpp"

namespace gdn_cuda::scan {
namespace {

struct S7Call {
    static constexpr const char* name = "s7_scan";
    S7Scan scan;

    GDN_FIELDS(scan)
};
struct S7BackwardCall {
    static constexpr const char* name = "s7_scan_backward";
    Given grad, states;
    OptionalTensor grad_last = {};
    S7Scan scan;

    GDN_FIELDS(grad, states, grad_last, scan)
};

S7Rows s7_rows_of(const View& view) {
    if (!view.defined()) return {};
    return {view.data, view.stride(0), view.stride(1)};
}
S7Matrix matrix_of(const View& view) {
    return {view.data, view.stride(0), view.stride(1), view.stride(2)};
}
S7Matrix transposed(S7Matrix matrix) {
    std::swap(matrix.row, matrix.column);
    return matrix;
}
bool vectors(std::initializer_list<const View*> views) {
    return std::ranges::all_of(views, [](const View* view) { return !view->defined() || view->aligned16(); });
}

struct PreparedS7 {
    View u, A, B, C, bias;
    DType io = DType::f32;
    int64_t b = 0, H = 0, N = 0, L = 0;

    DType state() const { return io == DType::f64 ? DType::f64 : DType::f32; }
    ScalarType state_type() const { return io == DType::f64 ? ScalarType::Double : ScalarType::Float; }
    int count(int64_t n) const { return static_cast<int>(n); }
};

PreparedS7 prepare(const char* name, const S7Scan& x) {
    const Checks check{name};
    PreparedS7 p{.u = View(x.u), .A = View(x.A), .B = View(x.B), .C = View(x.C), .bias = view_of(x.bias)};
    check.rank("u", p.u, 3, "(b, H, L)");
    check.rank("A", p.A, 3, "(b, N, L)");
    p.io = check.number("u", p.u);
    p.b = p.u.size(0), p.H = p.u.size(1), p.N = p.A.size(1), p.L = p.u.size(2);
    check.shape("A", p.A, {p.b, p.N, p.L}, "(b, N, L)");
    check.shape("B", p.B, {p.b, p.N, p.H, p.L}, "(b, N, H, L)");
    check.shape("C", p.C, {p.b, p.H, p.N, p.L}, "(b, H, N, L)");
    if (p.bias.defined()) check.shape("bias", p.bias, {p.b, p.N, p.L}, "(b, N, L)");
    for (const auto& [argument, view] :
         {std::pair{"u", &p.u}, std::pair{"A", &p.A}, std::pair{"B", &p.B}, std::pair{"C", &p.C}, std::pair{"bias", &p.bias}}) {
        if (!view->defined()) continue;
        check.dtype(argument, *view, {p.io});
        check.device(argument, *view, p.u, "u");
        check.last_contiguous(argument, *view);
    }
    check.count("u", "tokens", p.L, (int64_t{1} << 31) - 4096);
    check.count("u", "inputs", p.H);
    check.count("A", "states", p.N);
    check.grid("A", {p.b * p.N, ceil_div(p.N, kS7Rows), p.b});
    check.grid("u", {1, ceil_div(p.H, kS7Rows), p.b});
    return p;
}
PreparedS7 prepare_s7(const S7Call& call) {
    return prepare(call.name, call.scan);
}

PreparedS7 prepare_s7_backward(const S7BackwardCall& call) {
    const Checks check{call.name};
    const PreparedS7 p = prepare(call.name, call.scan);
    const View grad(call.grad), states(call.states), grad_last = view_of(call.grad_last);
    check.shape("grad", grad, {p.b, p.H, p.L}, "(b, H, L)");
    check.dtype("grad", grad, {p.io});
    check.device("grad", grad, p.u, "u");
    check.last_contiguous("grad", grad);
    check.shape("states", states, {p.b, p.N, p.L}, "(b, N, L)");
    check.dtype("states", states, {p.state()});
    check.device("states", states, p.u, "u");
    GDN_REQUIRE(check, states.contiguous_tail(3), "states", "a contiguous tensor", stride_text(states));
    if (grad_last.defined()) {
        check.shape("grad_last", grad_last, {p.b, p.N}, "(b, N)");
        check.dtype("grad_last", grad_last, {p.state()});
        check.device("grad_last", grad_last, p.u, "u");
        GDN_REQUIRE(check, grad_last.contiguous_tail(2), "grad_last", "a contiguous tensor", stride_text(grad_last));
    }
    return p;
}

// out = matrix · vector (+ bias)
void multiply(const PreparedS7& p, bool is_input, const S7Matrix& matrix, const View& matrix_view, const View& vector,
              const View& bias, const View& out, const Target& target) {
    S7Product::run({p.io, is_input},
                   {.matrix = matrix,
                    .vector = s7_rows_of(vector),
                    .bias = s7_rows_of(bias),
                    .out = s7_rows_of(out),
                    .rows = p.count(out.size(1)),
                    .columns = p.count(vector.size(1)),
                    .tokens = p.count(p.L),
                    .vectors = vectors({&matrix_view, &vector, &bias, &out})},
                   p.b, target);
}

// Returns (out, last state, states).
std::tuple<Tensor, Tensor, Tensor> run_s7(const S7Call& call) {
    const PreparedS7 p = prepare_s7(call);
    const Tensor& like = call.scan.u;
    const Tensor out = new_tensor(like, std::vector<int64_t>{p.b, p.H, p.L}),
                 last = new_tensor(like, std::vector<int64_t>{p.b, p.N}, p.state_type()),
                 states = new_tensor(like, std::vector<int64_t>{p.b, p.N, p.L}, p.state_type());
    const View to(out), x(states);
    const DeviceScope scope(p.u.device_index);
    const Target target = target_of(call.name, p.u);
    multiply(p, true, matrix_of(p.B), p.B, p.u, p.bias, x, target);
    S7States::run({p.io, false},
                  {.A = s7_rows_of(p.A),
                   .states = static_cast<float*>(x.data),
                   .last = static_cast<float*>(memory_of(last)),
                   .rows = p.count(p.N),
                   .tokens = p.count(p.L)},
                  p.b, target);
    multiply(p, false, matrix_of(p.C), p.C, x, {}, to, target);
    return {out, last, states};
}

// Returns the gradients of u, A, B, C, and bias (b, N, L), the latter in the states' dtype.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> run_s7_backward(const S7BackwardCall& call) {
    const PreparedS7 p = prepare_s7_backward(call);
    const S7Scan& scan = call.scan;
    const auto like = [](const Tensor& x) { return new_tensor(x, x.sizes()); };
    const Tensor du = like(scan.u), dA = like(scan.A), dB = like(scan.B), dC = like(scan.C),
                 added = new_tensor(call.states, std::vector<int64_t>{p.b, p.N, p.L});
    const View grad(call.grad), x(call.states), g(added), du_view(du), dB_view(dB), dC_view(dC),
        grad_last = view_of(call.grad_last);
    const DeviceScope scope(p.u.device_index);
    const Target target = target_of(call.name, p.u);
    multiply(p, true, transposed(matrix_of(p.C)), p.C, grad, {}, g, target);
    S7States::run({p.io, true},
                  {.A = s7_rows_of(p.A),
                   .states = static_cast<float*>(x.data),
                   .grads = static_cast<float*>(g.data),
                   .grad_last = grad_last.defined() ? static_cast<const float*>(grad_last.data) : nullptr,
                   .dA = memory_of(dA),
                   .rows = p.count(p.N),
                   .tokens = p.count(p.L)},
                  p.b, target);
    multiply(p, false, transposed(matrix_of(p.B)), p.B, g, {}, du_view, target);
    const auto outer = [&](const View& states, const View& inputs, const S7Matrix& to, const View& out) {
        S7Outer::run({p.io},
                     {.states = s7_rows_of(states),
                      .inputs = s7_rows_of(inputs),
                      .out = to,
                      .states_count = p.count(p.N),
                      .inputs_count = p.count(p.H),
                      .tokens = p.count(p.L),
                      .vectors = vectors({&states, &inputs, &out})},
                     p.b, target);
    };
    outer(g, p.u, matrix_of(dB_view), dB_view);
    outer(x, grad, transposed(matrix_of(dC_view)), dC_view);
    return {du, dA, dB, dC, added};
}

GDN_REGISTER(S7Call, prepare_s7, run_s7)
GDN_REGISTER(S7BackwardCall, prepare_s7_backward, run_s7_backward)

}  // namespace
}  // namespace gdn_cuda::scan

namespace gdn_cuda {

std::tuple<Tensor, Tensor> s7_scan(const S7Scan& x) {
    using namespace scan;
    require_given(S7Call::name, x);
    const S7Call given{.scan = x};
    const auto [out, last, states] = call<S7Call, run_s7>(given);
    return {out, last};
}

}  // namespace gdn_cuda
