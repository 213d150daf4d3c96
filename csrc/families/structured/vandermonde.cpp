// log_vandermonde, and the moments from which its transpose and both gradients are computed.
#include "vandermonde.hpp"

#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/structured.hpp>

#include "../../operators/operator.hpp"
#include "../../operators/result_size.hpp"
#include "broadcast.hpp"
#include "vandermonde_moments.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 40, kMostPoles = int64_t{1} << 30;

struct VandermondeCall {
    static constexpr const char* name = "log_vandermonde";
    Given v, x;
    SymInt L;

    GDN_FIELDS(v, x, L)
};
struct VandermondeOutCall {
    static constexpr const char* name = "log_vandermonde_out";
    VandermondeCall sum;
    Written out;

    GDN_FIELDS(sum, out)
};
struct MomentsCall {
    static constexpr const char* name = "log_vandermonde_moments";
    Given u, x;
    int64_t orders = 1;

    GDN_FIELDS(u, x, orders)
};

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

PreparedVandermonde prepare_vandermonde(const VandermondeCall& call) {
    const Checks check{"log_vandermonde"};
    const int64_t L = call.L;
    PreparedVandermonde prepared{View(call.v), View(call.x), DType::c64, {}};
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
    int64_t rows = 1;
    for (const int64_t size : prepared.shape.leading) rows *= size;
    check_result_size(check, "L", {rows, L}, prepared.type == DType::c64 ? DType::f32 : DType::f64, prepared.v);
    return prepared;
}

PreparedVandermonde prepare_vandermonde_out(const VandermondeOutCall& call) {
    PreparedVandermonde prepared = prepare_vandermonde(call.sum);
    const Checks check{"log_vandermonde"};
    CheckedOutput(check, call.out, prepared.shape_with(call.sum.L), prepared.type == DType::c64 ? DType::f32 : DType::f64,
                  prepared.v)
        .apart_from("v", prepared.v)
        .apart_from("x", prepared.x);
    return prepared;
}

void launch_vandermonde(const PreparedVandermonde& prepared, int64_t L, const Tensor& out) {
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

PreparedMoments prepare_moments(const MomentsCall& call) {
    const Checks check{"log_vandermonde_transpose"};
    const int64_t orders = call.orders;
    PreparedMoments prepared{View(call.u), View(call.x), DType::c64, {}};
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

Tensor run_vandermonde(const VandermondeCall& call) {
    const PreparedVandermonde prepared = prepare_vandermonde(call);
    const Tensor out =
        new_tensor(call.v, prepared.shape_with(call.L), prepared.type == DType::c64 ? ScalarType::Float : ScalarType::Double);
    launch_vandermonde(prepared, call.L, out);
    return out;
}

void run_vandermonde_out(const VandermondeOutCall& call) {
    launch_vandermonde(prepare_vandermonde_out(call), call.sum.L, call.out);
}

// Returns (orders, leading..., N).
Tensor run_moments(const MomentsCall& call) {
    const PreparedMoments prepared = prepare_moments(call);
    const int64_t orders = call.orders;
    const Checks check{"log_vandermonde_transpose"};
    const i64 poles = prepared.x.size(-1), steps = prepared.u.size(-1);
    VandermondeMomentsArgs args{
        .values = operand(prepared.u), .exponents = operand(prepared.x), .pole_count = static_cast<int>(poles), .steps = steps};
    set_leading(check, "u", prepared.shape.leading, {{&prepared.u, &args.values}, {&prepared.x, &args.exponents}}, args);
    const DeviceScope scope(prepared.x.device_index);
    const Target target = target_of(check.function, prepared.x);
    const VandermondeMomentsProblem problem{args.rows, steps, prepared.type, static_cast<int>(orders), poles};
    const VandermondeMomentsConfig config = vandermonde_moments_config(problem, jit::device_traits(target.ordinal));
    const i64 squares = vandermonde_moments_squares(config, steps);
    const int64_t first = 0;
    std::vector<int64_t> shape{squares, orders};
    shape.insert(shape.end(), prepared.shape.leading.begin(), prepared.shape.leading.end());
    shape.push_back(poles);
    const Tensor out = new_tensor(call.x, shape);
    args.out = out.data_ptr();
    VandermondeMoments::run(problem, config, args, target);
    if (squares == 1) return torch::stable::select(out, 0, first);
    return torch::stable::sum(out, torch::headeronly::IntHeaderOnlyArrayRef(&first, 1));
}

GDN_REGISTER(VandermondeCall, prepare_vandermonde, run_vandermonde)
GDN_REGISTER(VandermondeOutCall, prepare_vandermonde_out, run_vandermonde_out)
GDN_REGISTER(MomentsCall, prepare_moments, run_moments)

}  // namespace
}  // namespace gdn_cuda::structured

namespace gdn_cuda {

Tensor log_vandermonde(const LogVandermonde& x) {
    using namespace structured;
    require_given("log_vandermonde", x);
    const VandermondeCall sum{plain_on_cuda(x.v), plain_on_cuda(x.x), {x.L}};
    if (!x.out) return call<VandermondeCall, run_vandermonde>(sum);
    call<VandermondeOutCall, run_vandermonde_out>({.sum = sum, .out = *x.out});
    return *x.out;
}

Tensor log_vandermonde_transpose(const LogVandermondeTranspose& x) {
    using namespace structured;
    require_given("log_vandermonde_transpose", x);
    const View v(x.v), exponents(x.x);
    const Checks check{"log_vandermonde_transpose"};
    GDN_REQUIRE(check, exponents.rank >= 1, "x", "rank 1 or more", shape_text(exponents));
    GDN_REQUIRE(check, v.rank >= 1 && v.size(-1) == exponents.size(-1), "v",
                fmt::format("(…, {}) as x has", exponents.size(-1)), shape_text(v));
    check.dtype("v", v, {check.dtype("x", exponents, {DType::c64, DType::c128})});
    check.device("v", v, exponents, "x");
    const Tensor moments = call<MomentsCall, run_moments>({.u = plain_on_cuda(x.u), .x = plain_on_cuda(x.x)});
    const int64_t first = 0;
    return call_torch("aten::mul", "Tensor", *x.v, torch::stable::select(moments, 0, first));
}

}  // namespace gdn_cuda
