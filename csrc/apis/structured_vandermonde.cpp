// log_vandermonde, and the moments that its transpose and the gradients of both are made of.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "../jit_kernels/impls/structured/vandermonde.hpp"
#include "../jit_kernels/impls/structured/vandermonde_moments.hpp"
#include "register.hpp"
#include "structured.hpp"

namespace gdn_cuda::structured {
namespace {

using torch::headeronly::ScalarType;

constexpr int64_t kMostSteps = int64_t{1} << 40, kMostPoles = int64_t{1} << 30;

struct PreparedVandermonde {
    View v, x;
    DType type;
    Broadcast shape;

    std::vector<int64_t> shape_with(int64_t L) const {
        std::vector<int64_t> sizes = shape.leading;
        sizes.push_back(L);
        return sizes;
    }
};

PreparedVandermonde prepare_vandermonde(const Tensor& v, const Tensor& x, int64_t L) {
    const Checks check{"log_vandermonde"};
    PreparedVandermonde prepared{View(v), View(x), DType::c64, {}};
    prepared.type = check.dtype("v", prepared.v, {DType::c64, DType::c128});
    check.dtype("x", prepared.x, {prepared.type});
    check.device("x", prepared.x, prepared.v, "v");
    for (const auto& [name, view] : {std::pair{"v", &prepared.v}, std::pair{"x", &prepared.x}}) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        prepared.shape.add(check, name, *view, "v");
    }
    GDN_REQUIRE(check, prepared.x.size(-1) == prepared.v.size(-1), "x", fmt::format("(…, {}) as v has", prepared.v.size(-1)),
                shape_text(prepared.x));
    GDN_REQUIRE(check, prepared.x.size(-1) <= kMostPoles, "x", fmt::format("at most {} poles", kMostPoles),
                shape_text(prepared.x));
    GDN_REQUIRE(check, L >= 0 && L <= kMostSteps, "L", fmt::format("0 to {}", kMostSteps), fmt::format("{}", L));
    return prepared;
}

PreparedVandermonde prepare_vandermonde_out(const Tensor& v, const Tensor& x, int64_t L, const Tensor& out) {
    PreparedVandermonde prepared = prepare_vandermonde(v, x, L);
    const Checks check{"log_vandermonde"};
    const std::vector<int64_t> shape = prepared.shape_with(L);
    Output(check, out, shape, prepared.type == DType::c64 ? DType::f32 : DType::f64, prepared.v)
        .apart_from("v", prepared.v)
        .apart_from("x", prepared.x);
    return prepared;
}

void run_vandermonde(const PreparedVandermonde& prepared, int64_t L, const Tensor& out) {
    const Checks check{"log_vandermonde"};
    VandermondeArgs args{.residues = operand(prepared.v),
                         .exponents = operand(prepared.x),
                         .out = out.data_ptr(),
                         .pole_count = static_cast<int>(prepared.x.size(-1)),
                         .steps = L};
    set_leading(check, "v", prepared.shape.leading, {{&prepared.v, &args.residues}, {&prepared.x, &args.exponents}}, args);
    const DeviceScope scope(prepared.v.device_index);
    Vandermonde::run({args.rows, L, prepared.type, args.pole_count}, args, target_of(check.function, prepared.v));
}

struct PreparedMoments {
    View u, x;
    DType type;
    Broadcast shape;
};

PreparedMoments prepare_moments(const Tensor& u, const Tensor& x, int64_t orders) {
    const Checks check{"log_vandermonde_transpose"};
    PreparedMoments prepared{View(u), View(x), DType::c64, {}};
    prepared.type = check.dtype("x", prepared.x, {DType::c64, DType::c128});
    check.dtype("u", prepared.u, {prepared.type == DType::c64 ? DType::f32 : DType::f64});
    check.device("u", prepared.u, prepared.x, "x");
    for (const auto& [name, view] : {std::pair{"u", &prepared.u}, std::pair{"x", &prepared.x}}) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        prepared.shape.add(check, name, *view, "u");
    }
    GDN_REQUIRE(check, prepared.x.size(-1) <= kMostPoles, "x", fmt::format("at most {} poles", kMostPoles),
                shape_text(prepared.x));
    GDN_REQUIRE(check, orders == 1 || orders == 2, "orders", "1 or 2", fmt::format("{}", orders));
    return prepared;
}

}  // namespace

Tensor log_vandermonde(const Tensor& v, const Tensor& x, int64_t L) {
    const PreparedVandermonde prepared = prepare_vandermonde(v, x, L);
    const Tensor out = torch::stable::new_empty(v, prepared.shape_with(L),
                                                prepared.type == DType::c64 ? ScalarType::Float : ScalarType::Double);
    run_vandermonde(prepared, L, out);
    return out;
}

void log_vandermonde_out(const Tensor& v, const Tensor& x, int64_t L, const Tensor& out) {
    run_vandermonde(prepare_vandermonde_out(v, x, L, out), L, out);
}

// (orders, leading..., N)
Tensor log_vandermonde_moments(const Tensor& u, const Tensor& x, int64_t orders) {
    const PreparedMoments prepared = prepare_moments(u, x, orders);
    const Checks check{"log_vandermonde_transpose"};
    const VandermondeMomentsConfig config = vandermonde_moments_config(prepared.type, static_cast<int>(orders));
    const i64 steps = prepared.u.size(-1), squares = VandermondeMoments::squares(config, steps);
    std::vector<int64_t> shape{squares, orders};
    shape.insert(shape.end(), prepared.shape.leading.begin(), prepared.shape.leading.end());
    shape.push_back(prepared.x.size(-1));
    const Tensor out = torch::stable::new_empty(x, shape);
    VandermondeMomentsArgs args{.numbers = operand(prepared.u),
                                .exponents = operand(prepared.x),
                                .out = out.data_ptr(),
                                .pole_count = static_cast<int>(prepared.x.size(-1)),
                                .steps = steps};
    set_leading(check, "u", prepared.shape.leading, {{&prepared.u, &args.numbers}, {&prepared.x, &args.exponents}}, args);
    const DeviceScope scope(prepared.x.device_index);
    VandermondeMoments::run(config, args, target_of(check.function, prepared.x));
    const int64_t first = 0;
    return torch::stable::sum(out, torch::headeronly::IntHeaderOnlyArrayRef(&first, 1));
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "log_vandermonde", "Tensor v, Tensor x, SymInt L", "Tensor");
    define_checked(m, "log_vandermonde_out", "Tensor v, Tensor x, SymInt L, Tensor(a!) out", "()");
    define_checked(m, "log_vandermonde_moments", "Tensor u, Tensor x, int orders", "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("log_vandermonde", TORCH_BOX(&log_vandermonde));
    m.impl("log_vandermonde_out", TORCH_BOX(&log_vandermonde_out));
    m.impl("log_vandermonde_moments", TORCH_BOX(&log_vandermonde_moments));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_log_vandermonde", TORCH_BOX(&OnlyCheck<prepare_vandermonde>::run));
    m.impl("validate_log_vandermonde_out", TORCH_BOX(&OnlyCheck<prepare_vandermonde_out>::run));
    m.impl("validate_log_vandermonde_moments", TORCH_BOX(&OnlyCheck<prepare_moments>::run));
}

}  // namespace gdn_cuda::structured
