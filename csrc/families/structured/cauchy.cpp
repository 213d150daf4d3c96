// cauchy_kernel, cauchy_conj and their gradients.
#include "cauchy.hpp"

#include <array>
#include <gdn_cuda/structured.hpp>

#include "../../launch/tuned.hpp"
#include "../../operators/operator.hpp"
#include "broadcast.hpp"
#include "cauchy_backward.hpp"
#include "cauchy_batch.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr int64_t kMostOnALine = int64_t{1} << 30;

// cauchy_kernel, or cauchy_conj with its points z and poles w.
struct CauchyCall {
    static constexpr const char* name = "cauchy";
    Given v, points, poles;
    bool conj = false;

    GDN_FIELDS(v, points, poles, conj)
};
struct CauchyOutCall {
    static constexpr const char* name = "cauchy_out";
    CauchyCall sum;
    Written out;

    GDN_FIELDS(sum, out)
};
struct CauchyBackwardCall {
    static constexpr const char* name = "cauchy_backward";
    Given grad;
    CauchyCall sum;
    bool needs_dv = false, needs_dpoints = false, needs_dpoles = false;

    GDN_FIELDS(grad, sum, needs_dv, needs_dpoints, needs_dpoles)
};

struct PreparedCauchy {
    View v, points, poles;
    DType type;
    Broadcast shape;
    View grad = {};

    std::vector<int64_t> shape_with(const View& last) const {
        std::vector<int64_t> sizes = shape.leading;
        sizes.push_back(last.size(-1));
        return sizes;
    }
};

// Errors name the public function that the caller used.
Checks checks_of(bool conj) {
    return {conj ? "cauchy_conj" : "cauchy_kernel"};
}

PreparedCauchy prepare_cauchy(const CauchyCall& x) {
    const Checks check = checks_of(x.conj);
    const char *const points_name = x.conj ? "z" : "omega", *const poles_name = x.conj ? "w" : "lambd";
    PreparedCauchy prepared{View(x.v), View(x.points), View(x.poles), DType::f32, {}};
    const std::array<std::pair<const char*, const View*>, 3> all{
        {{"v", &prepared.v}, {points_name, &prepared.points}, {poles_name, &prepared.poles}}};
    prepared.type =
        x.conj ? check.dtype("v", prepared.v, {DType::c64, DType::c128})
               : check.dtype("v", prepared.v, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128});
    for (const auto& [name, view] : all) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        check.dtype(name, *view, {prepared.type});
        check.device(name, *view, prepared.v, "v");
        prepared.shape.add(check, name, *view, "v");
        GDN_REQUIRE(check, view->size(-1) <= kMostOnALine, name, fmt::format("a last dimension of at most {}", kMostOnALine),
                    shape_text(*view));
    }
    GDN_REQUIRE(check, prepared.poles.size(-1) == prepared.v.size(-1), poles_name,
                fmt::format("(…, {}) as v has", prepared.v.size(-1)), shape_text(prepared.poles));
    return prepared;
}

PreparedCauchy prepare_cauchy_out(const CauchyOutCall& x) {
    PreparedCauchy prepared = prepare_cauchy(x.sum);
    const Checks check = checks_of(x.sum.conj);
    const std::vector<int64_t> shape = prepared.shape_with(prepared.points);
    CheckedOutput(check, x.out, shape, prepared.type, prepared.v)
        .apart_from("v", prepared.v)
        .apart_from(x.sum.conj ? "z" : "omega", prepared.points)
        .apart_from(x.sum.conj ? "w" : "lambd", prepared.poles);
    return prepared;
}

PreparedCauchy prepare_cauchy_backward(const CauchyBackwardCall& x) {
    PreparedCauchy prepared = prepare_cauchy(x.sum);
    const Checks check = checks_of(x.sum.conj);
    const View& grad = prepared.grad = View(x.grad);
    check.dtype("grad", grad, {prepared.type});
    check.device("grad", grad, prepared.v, "v");
    const std::vector<int64_t> expected = prepared.shape_with(prepared.points);
    GDN_REQUIRE(check, std::ranges::equal(std::span(grad.sizes, static_cast<size_t>(grad.rank)), expected), "grad",
                "the shape of the result", shape_text(grad));
    return prepared;
}

void launch_cauchy(const PreparedCauchy& prepared, bool conj, const Tensor& out) {
    const Checks check = checks_of(conj);
    CauchyArgs args{.residues = operand(prepared.v),
                    .points = operand(prepared.points),
                    .poles = operand(prepared.poles),
                    .out = out.data_ptr(),
                    .pole_count = static_cast<int>(prepared.poles.size(-1)),
                    .point_count = static_cast<int>(prepared.points.size(-1))};
    set_leading(check, "v", prepared.shape.leading,
                {{&prepared.v, &args.residues}, {&prepared.points, &args.points}, {&prepared.poles, &args.poles}}, args);
    const int last = args.leading - 1;
    const i64 shared_rows = last >= 0 && args.points.stride[last] == 0 && args.poles.stride[last] == 0 ? args.size[last] : 1;
    const DeviceScope scope(prepared.v.device_index);
    const Target target = target_of(check.function, prepared.v);
    const CauchyProblem problem{args.rows, shared_rows, args.point_count, prepared.type, conj, args.pole_count};
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const CauchyChoice choice = cauchy_choice(problem, device, tuned<CauchyTuning>(device));
    choice.in_batches ? CauchyBatch::run(problem, args, target) : Cauchy::run(problem, choice, args, target);
}

Tensor run_cauchy(const CauchyCall& x) {
    const PreparedCauchy prepared = prepare_cauchy(x);
    const Tensor out = new_tensor(x.v, prepared.shape_with(prepared.points));
    launch_cauchy(prepared, x.conj, out);
    return out;
}

void run_cauchy_out(const CauchyOutCall& x) {
    launch_cauchy(prepare_cauchy_out(x), x.sum.conj, x.out);
}

std::tuple<Tensor, Tensor, Tensor> run_cauchy_backward(const CauchyBackwardCall& x) {
    const PreparedCauchy prepared = prepare_cauchy_backward(x);
    const bool conj = x.sum.conj;
    const Checks check = checks_of(conj);
    const auto result = [&](const View& like, bool wanted) {
        return new_tensor(x.sum.v, wanted ? prepared.shape_with(like) : std::vector<int64_t>{0});
    };
    std::tuple found{result(prepared.v, x.needs_dv), result(prepared.points, x.needs_dpoints),
                     result(prepared.poles, x.needs_dpoles)};
    const auto place = [](const Tensor& tensor, bool wanted) { return wanted ? tensor.data_ptr() : nullptr; };
    CauchyBackwardArgs args{.residues = operand(prepared.v),
                            .points = operand(prepared.points),
                            .poles = operand(prepared.poles),
                            .grad = operand(prepared.grad),
                            .dresidues = place(std::get<0>(found), x.needs_dv),
                            .dpoints = place(std::get<1>(found), x.needs_dpoints),
                            .dpoles = place(std::get<2>(found), x.needs_dpoles),
                            .pole_count = static_cast<int>(prepared.poles.size(-1)),
                            .point_count = static_cast<int>(prepared.points.size(-1))};
    set_leading(check, "v", prepared.shape.leading,
                {{&prepared.v, &args.residues},
                 {&prepared.points, &args.points},
                 {&prepared.poles, &args.poles},
                 {&prepared.grad, &args.grad}},
                args);
    const DeviceScope scope(prepared.v.device_index);
    const Target target = target_of(check.function, prepared.v);
    if (x.needs_dv || x.needs_dpoles)
        CauchyBackward::run({args.rows, args.pole_count, prepared.type, conj, false}, args, target);
    if (x.needs_dpoints) CauchyBackward::run({args.rows, args.point_count, prepared.type, conj, true}, args, target);
    return found;
}

GDN_REGISTER(CauchyCall, prepare_cauchy, run_cauchy)
GDN_REGISTER(CauchyOutCall, prepare_cauchy_out, run_cauchy_out)
GDN_REGISTER(CauchyBackwardCall, prepare_cauchy_backward, run_cauchy_backward)

Tensor sum_over_poles(const CauchyCall& x, const OptionalTensor& out) {
    const CauchyCall sum{plain_on_cuda(x.v), plain_on_cuda(x.points), plain_on_cuda(x.poles), x.conj};
    if (!out) return call<CauchyCall, run_cauchy>(sum);
    call<CauchyOutCall, run_cauchy_out>({.sum = sum, .out = *out});
    return *out;
}

}  // namespace
}  // namespace gdn_cuda::structured

namespace gdn_cuda {

Tensor cauchy_kernel(const CauchyKernel& x) {
    require_given("cauchy_kernel", x);
    return structured::sum_over_poles({.v = x.v, .points = x.omega, .poles = x.lambd, .conj = false}, x.out);
}

Tensor cauchy_conj(const CauchyConj& x) {
    require_given("cauchy_conj", x);
    return structured::sum_over_poles({.v = x.v, .points = x.z, .poles = x.w, .conj = true}, x.out);
}

}  // namespace gdn_cuda
