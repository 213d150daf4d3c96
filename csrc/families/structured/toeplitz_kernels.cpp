// The kernels that solve Toeplitz systems, as operators; for CPU tensors Python registers equivalents. toeplitz_solve.cpp
// chooses between them.
#include <torch/csrc/stable/ops.h>

#include "toeplitz.hpp"
#include "toeplitz_eliminate.hpp"
#include "toeplitz_generators.hpp"
#include "toeplitz_gko.hpp"
#include "toeplitz_methods.hpp"
#include "toeplitz_pcg.hpp"
#include "toeplitz_schur.hpp"

namespace gdn_cuda::structured {

PreparedToeplitz prepare_toeplitz_positive(const ToeplitzPositiveCall& x) {
    PreparedToeplitz prepared = prepare_toeplitz(solve_names(true, false), x.c, x.c, x.b);
    prepared.check().dtype("c", prepared.column, {DType::f32, DType::f64});
    return prepared;
}

namespace {

PreparedToeplitz prepare_toeplitz_schur(const ToeplitzSchurCall& x) {
    return prepare_toeplitz_positive({x.c, x.b});
}
PreparedToeplitz prepare_toeplitz_pcg(const ToeplitzPcgCall& x) {
    return prepare_toeplitz_positive({x.c, x.b});
}
PreparedToeplitz prepare_toeplitz_gko(const ToeplitzGkoCall& x) {
    return prepare_toeplitz(solve_names(false, false), x.c, x.r, x.b);
}
PreparedToeplitz prepare_toeplitz_generators(const ToeplitzGeneratorsCall& x) {
    PreparedToeplitz prepared = prepare_toeplitz(solve_names(false, false), x.c, x.r, x.b);
    GDN_REQUIRE(prepared.check(), prepared.n() <= kToeplitzEliminateLongest, "c",
                fmt::format("at most {} rows for this kernel", kToeplitzEliminateLongest), shape_text(prepared.column));
    return prepared;
}

struct PreparedElimination {
    View left, right, rhs;
    ToeplitzEliminateProblem problem;
};

PreparedElimination prepare_toeplitz_eliminate(const ToeplitzEliminateCall& x) {
    const Checks check{x.name};
    const int64_t configuration = x.configuration;
    PreparedElimination prepared{View(x.left), View(x.right), View(x.rhs), {}};
    for (const auto& [name, view] : {std::pair{"left", &prepared.left}, {"right", &prepared.right}, {"rhs", &prepared.rhs}}) {
        check.dtype(name, *view, {DType::c128});
        check.device(name, *view, prepared.left, "left");
        check.rank(name, *view, 3, "(systems, 2 or columns, n)");
        GDN_REQUIRE(check, view->contiguous_tail(3), name, "a contiguous tensor", stride_text(*view));
    }
    const int64_t systems = prepared.rhs.size(0), columns = prepared.rhs.size(1), n = prepared.rhs.size(2);
    check.shape("left", prepared.left, {systems, 2, n}, "(systems, 2, n)");
    check.shape("right", prepared.right, {systems, 2, n}, "(systems, 2, n)");
    const auto all = static_cast<int64_t>(kToeplitzEliminateConfigurations.size());
    GDN_REQUIRE(check, configuration >= -1 && configuration < all, "configuration", fmt::format("-1 to {}", all - 1),
                fmt::format("{}", configuration));
    const int64_t longest = configuration < 0 ? kToeplitzEliminateLongest
                                              : kToeplitzEliminateConfigurations[static_cast<size_t>(configuration)].rows();
    GDN_REQUIRE(check, n <= longest, "left", fmt::format("at most {} rows", longest), shape_text(prepared.left));
    prepared.problem = {systems, columns, static_cast<int>(n)};
    return prepared;
}

// Arguments of all kernels that solve systems. `info` has an entry for every leading index of the result.
template <class Args>
Args args_to_solve(const PreparedToeplitz& prepared, int longest, const Tensor& out, const Tensor& info, double epsilon) {
    const Checks check = prepared.check();
    GDN_REQUIRE(check, prepared.n() <= longest, "c", fmt::format("at most {} rows for this kernel", longest),
                shape_text(prepared.column));
    Args args;
    args.column = operand(prepared.column);
    args.right = operand(prepared.vectors);
    args.right_column_stride = prepared.many ? prepared.right.stride(-1) : 0;
    args.out = out.data_ptr();
    args.info = info.data_ptr();
    args.n = static_cast<int>(prepared.n());
    args.columns = prepared.columns();
    args.epsilon = epsilon;
    const auto& leading = prepared.shape.leading;
    if constexpr (requires { args.row; }) {
        args.row = operand(prepared.row);
        set_leading(check, "c", leading,
                    {{&prepared.column, &args.column}, {&prepared.row, &args.row}, {&prepared.vectors, &args.right}}, args);
    } else {
        set_leading(check, "c", leading, {{&prepared.column, &args.column}, {&prepared.vectors, &args.right}}, args);
    }
    return args;
}

}  // namespace

Solution toeplitz_schur_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon) {
    const Tensor out = new_tensor(like, prepared.result());
    const Tensor info = torch::stable::new_zeros(like, prepared.shape.leading, ScalarType::Int);
    const auto args = args_to_solve<ToeplitzSchurArgs>(prepared, kToeplitzSchurLongest, out, info, epsilon);
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzSchur::run({args.rows, args.columns, args.n, prepared.type}, args,
                       target_of(prepared.names.function, prepared.column));
    return {out, info};
}

// The same by conjugate gradients; info is -1 where they do not converge.
Solution toeplitz_pcg_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon) {
    const Tensor out = new_tensor(like, prepared.result());
    const Tensor info = torch::stable::new_zeros(like, prepared.shape.leading, ScalarType::Int);
    auto args = args_to_solve<ToeplitzPcgArgs>(prepared, kToeplitzPcgLongest, out, info, epsilon);
    GDN_REQUIRE(prepared.check(), args.rows * (args.columns + 1) <= std::numeric_limits<int>::max(), "b",
                "fewer than 2^31 right-hand sides", shape_text(prepared.right));
    const DeviceScope scope(prepared.column.device_index);
    const ToeplitzPcgProblem problem{args.rows, args.columns, args.n, prepared.type};
    const Target target = target_of(prepared.names.function, prepared.column);
    const Tensor scratch = new_tensor(like, {ToeplitzPcg::scratch(problem, target.ordinal)}, ScalarType::Double);
    args.scratch = static_cast<double*>(scratch.data_ptr());
    ToeplitzPcg::run(problem, args, target);
    return {out, info};
}

Solution toeplitz_gko_kernel(const PreparedToeplitz& prepared, const Tensor& like, double epsilon) {
    const Tensor out = new_tensor(like, prepared.result());
    const Tensor info = torch::stable::new_zeros(like, prepared.shape.leading, ScalarType::Int);
    const auto args = args_to_solve<ToeplitzGkoArgs>(prepared, kToeplitzGkoLongest, out, info, epsilon);
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzGko::run({args.rows, args.columns, args.n, prepared.type}, args,
                     target_of(prepared.names.function, prepared.column));
    return {out, info};
}

namespace {

Solution toeplitz_schur(const ToeplitzSchurCall& x) {
    return toeplitz_schur_kernel(prepare_toeplitz_schur(x), x.c, x.epsilon);
}
Solution toeplitz_pcg(const ToeplitzPcgCall& x) {
    return toeplitz_pcg_kernel(prepare_toeplitz_pcg(x), x.c, x.epsilon);
}
Solution toeplitz_gko(const ToeplitzGkoCall& x) {
    return toeplitz_gko_kernel(prepare_toeplitz_gko(x), x.c, x.epsilon);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> toeplitz_generators(const ToeplitzGeneratorsCall& x) {
    const PreparedToeplitz prepared = prepare_toeplitz_generators(x);
    const Tensor& c = x.c;
    const Checks check = prepared.check();
    ToeplitzGeneratorsArgs args{.column = operand(prepared.column),
                                .row = operand(prepared.row),
                                .input = operand(prepared.vectors),
                                .input_column_stride = prepared.many ? prepared.right.stride(-1) : 0,
                                .n = static_cast<int>(prepared.n()),
                                .columns = prepared.columns()};
    set_leading(check, "c", prepared.shape.leading,
                {{&prepared.column, &args.column}, {&prepared.row, &args.row}, {&prepared.vectors, &args.input}}, args);
    const int64_t systems = args.rows, n = prepared.n();
    const Tensor left = new_tensor(c, {systems, 2, n}, ScalarType::ComplexDouble);
    const Tensor right = new_tensor(c, {systems, 2, n}, ScalarType::ComplexDouble);
    const Tensor rhs = new_tensor(c, {systems, args.columns + 1, n}, ScalarType::ComplexDouble);
    const Tensor scales = new_tensor(c, {systems, 2}, ScalarType::Double);
    args.left = left.data_ptr(), args.right = right.data_ptr(), args.rhs = rhs.data_ptr();
    args.scales = scales.data_ptr();
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzGenerators::run(prepared.type, args, target_of(check.function, prepared.column));
    return {left, right, rhs, scales};
}

namespace {

// The best configuration that the device can run.
ToeplitzEliminateConfig elimination_here(const ToeplitzEliminateProblem& problem, const Target& target) {
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    if (problem.n > kToeplitzEliminateLongestPortable || ToeplitzEliminate::fits(config, target)) return config;
    return toeplitz_eliminate_config(problem, device, kToeplitzEliminatePortable);
}

}  // namespace

Solution toeplitz_eliminate(const ToeplitzEliminateCall& x) {
    const auto [row_generators, column_generators, rhs, problem] = prepare_toeplitz_eliminate(x);
    const Checks check{x.name};
    const int64_t configuration = x.configuration;
    const DeviceScope scope(row_generators.device_index);
    const Target target = target_of(check.function, row_generators);
    const ToeplitzEliminateConfig config = configuration < 0
                                               ? elimination_here(problem, target)
                                               : kToeplitzEliminateConfigurations[static_cast<size_t>(configuration)];
    GDN_REQUIRE(check, ToeplitzEliminate::fits(config, target), "left",
                fmt::format("a GPU with clusters of {} blocks", config.blocks), "one without");
    const Tensor found = new_tensor(x.rhs, {problem.systems, problem.columns, problem.n});
    const Tensor info = torch::stable::new_zeros(x.rhs, {problem.systems}, ScalarType::Int);
    const ToeplitzEliminateArgs args{.left = row_generators.data,
                                     .right = column_generators.data,
                                     .rhs = rhs.data,
                                     .found = found.data_ptr(),
                                     .info = info.data_ptr(),
                                     .n = problem.n,
                                     .columns = static_cast<int>(problem.columns)};
    ToeplitzEliminate::run(config, problem, args, target);
    return {found, info};
}

bool toeplitz_eliminate_pays_here(const PreparedToeplitz& prepared) {
    if (prepared.n() > kToeplitzEliminateLongest) return false;
    const DeviceScope scope(prepared.column.device_index);
    const Target target = target_of(prepared.names.function, prepared.column);
    const ToeplitzEliminateProblem problem{prepared.systems(), prepared.columns() + 1, static_cast<int>(prepared.n())};
    return toeplitz_eliminate_pays(problem, jit::device_traits(target.ordinal)) &&
           ToeplitzEliminate::fits(elimination_here(problem, target), target);
}

GDN_REGISTER(ToeplitzSchurCall, prepare_toeplitz_schur, toeplitz_schur)
GDN_REGISTER(ToeplitzPcgCall, prepare_toeplitz_pcg, toeplitz_pcg)
GDN_REGISTER(ToeplitzGkoCall, prepare_toeplitz_gko, toeplitz_gko)
GDN_REGISTER(ToeplitzGeneratorsCall, prepare_toeplitz_generators, toeplitz_generators)
GDN_REGISTER(ToeplitzEliminateCall, prepare_toeplitz_eliminate, toeplitz_eliminate)

}  // namespace gdn_cuda::structured
