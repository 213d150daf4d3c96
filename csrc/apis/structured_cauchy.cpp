// cauchy_kernel, cauchy_conj and their gradients.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>

#include "../jit_kernels/impls/structured/cauchy.hpp"
#include "../jit_kernels/impls/structured/cauchy_backward.hpp"
#include "../jit_kernels/impls/structured/cauchy_batch.hpp"
#include "../jit_kernels/tuned.hpp"
#include "register.hpp"
#include "structured.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr int64_t kMostOnALine = int64_t{1} << 30;

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

PreparedCauchy prepare_cauchy(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj) {
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const char *const points_name = conj ? "z" : "omega", *const poles_name = conj ? "w" : "lambd";
    PreparedCauchy prepared{View(v), View(points), View(poles), DType::f32, {}};
    const std::array<std::pair<const char*, const View*>, 3> all{
        {{"v", &prepared.v}, {points_name, &prepared.points}, {poles_name, &prepared.poles}}};
    prepared.type =
        conj ? check.dtype("v", prepared.v, {DType::c64, DType::c128})
             : check.dtype("v", prepared.v, {DType::f32, DType::f64, DType::bf16, DType::f16, DType::c64, DType::c128});
    for (const auto& [name, view] : all) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        check.dtype(name, *view, {prepared.type});
        check.device(name, *view, prepared.v, "v");
        prepared.shape.add(check, name, *view, "v");
    }
    GDN_REQUIRE(check, std::max(prepared.v.size(-1), prepared.points.size(-1)) <= kMostOnALine, "v",
                fmt::format("lines of at most {} numbers", kMostOnALine), shape_text(prepared.v));
    GDN_REQUIRE(check, prepared.poles.size(-1) == prepared.v.size(-1), poles_name,
                fmt::format("(…, {}) as v has", prepared.v.size(-1)), shape_text(prepared.poles));
    return prepared;
}

PreparedCauchy prepare_cauchy_out(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj, const Tensor& out) {
    PreparedCauchy prepared = prepare_cauchy(v, points, poles, conj);
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const std::vector<int64_t> shape = prepared.shape_with(prepared.points);
    Output(check, out, shape, prepared.type, prepared.v)
        .apart_from("v", prepared.v)
        .apart_from(conj ? "z" : "omega", prepared.points)
        .apart_from(conj ? "w" : "lambd", prepared.poles);
    return prepared;
}

PreparedCauchy prepare_cauchy_backward(const Tensor& grad, const Tensor& v, const Tensor& points, const Tensor& poles,
                                       bool conj, bool /*of_v*/, bool /*of_points*/, bool /*of_poles*/) {
    PreparedCauchy prepared = prepare_cauchy(v, points, poles, conj);
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const View& given = prepared.grad = View(grad);
    check.dtype("grad", given, {prepared.type});
    check.device("grad", given, prepared.v, "v");
    const std::vector<int64_t> expected = prepared.shape_with(prepared.points);
    GDN_REQUIRE(check, std::ranges::equal(std::span(given.sizes, static_cast<size_t>(given.rank)), expected), "grad",
                "the shape of the result", shape_text(given));
    return prepared;
}

void run_cauchy(const PreparedCauchy& prepared, bool conj, const Tensor& out) {
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
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

}  // namespace

Tensor cauchy(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj) {
    const PreparedCauchy prepared = prepare_cauchy(v, points, poles, conj);
    const Tensor out = torch::stable::new_empty(v, prepared.shape_with(prepared.points));
    run_cauchy(prepared, conj, out);
    return out;
}

void cauchy_out(const Tensor& v, const Tensor& points, const Tensor& poles, bool conj, const Tensor& out) {
    run_cauchy(prepare_cauchy_out(v, points, poles, conj, out), conj, out);
}

std::tuple<Tensor, Tensor, Tensor> cauchy_backward(const Tensor& grad, const Tensor& v, const Tensor& points,
                                                   const Tensor& poles, bool conj, bool of_v, bool of_points, bool of_poles) {
    const PreparedCauchy prepared = prepare_cauchy_backward(grad, v, points, poles, conj, of_v, of_points, of_poles);
    const Checks check{conj ? "cauchy_conj" : "cauchy_kernel"};
    const auto result = [&](const View& like, bool wanted) {
        return torch::stable::new_empty(v, wanted ? prepared.shape_with(like) : std::vector<int64_t>{0});
    };
    std::tuple found{result(prepared.v, of_v), result(prepared.points, of_points), result(prepared.poles, of_poles)};
    const auto place = [](const Tensor& x, bool wanted) { return wanted ? x.data_ptr() : nullptr; };
    CauchyBackwardArgs args{.residues = operand(prepared.v),
                            .points = operand(prepared.points),
                            .poles = operand(prepared.poles),
                            .grad = operand(prepared.grad),
                            .of_residues = place(std::get<0>(found), of_v),
                            .of_points = place(std::get<1>(found), of_points),
                            .of_poles = place(std::get<2>(found), of_poles),
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
    if (of_v || of_poles) CauchyBackward::run({args.rows, args.pole_count, prepared.type, conj, false}, args, target);
    if (of_points) CauchyBackward::run({args.rows, args.point_count, prepared.type, conj, true}, args, target);
    return found;
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "cauchy", "Tensor v, Tensor points, Tensor poles, bool conj", "Tensor");
    define_checked(m, "cauchy_out", "Tensor v, Tensor points, Tensor poles, bool conj, Tensor(a!) out", "()");
    define_checked(m, "cauchy_backward",
                   "Tensor grad, Tensor v, Tensor points, Tensor poles, bool conj, bool of_v, bool of_points, bool of_poles",
                   "(Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("cauchy", TORCH_BOX(&cauchy));
    m.impl("cauchy_out", TORCH_BOX(&cauchy_out));
    m.impl("cauchy_backward", TORCH_BOX(&cauchy_backward));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_cauchy", TORCH_BOX(&OnlyCheck<prepare_cauchy>::run));
    m.impl("validate_cauchy_out", TORCH_BOX(&OnlyCheck<prepare_cauchy_out>::run));
    m.impl("validate_cauchy_backward", TORCH_BOX(&OnlyCheck<prepare_cauchy_backward>::run));
}

}  // namespace gdn_cuda::structured
