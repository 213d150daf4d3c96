// Products with Toeplitz matrices, and the checks of the solvers, whose parts gdn_cuda/ops puts together.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "../jit_kernels/impls/structured/toeplitz_eliminate.hpp"
#include "../jit_kernels/impls/structured/toeplitz_generators.hpp"
#include "../jit_kernels/impls/structured/toeplitz_gko.hpp"
#include "../jit_kernels/impls/structured/toeplitz_matvec.hpp"
#include "../jit_kernels/impls/structured/toeplitz_pcg.hpp"
#include "../jit_kernels/impls/structured/toeplitz_schur.hpp"
#include "../jit_kernels/impls/structured/toeplitz_sums.hpp"
#include "register.hpp"
#include "structured.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr int64_t kLongestToeplitz = int64_t{1} << 30;

struct PreparedToeplitz {
    View column, row, right;
    View lines;  // the right-hand sides without their last dimension, where there are columns
    DType type;
    Broadcast shape;
    bool many;

    int64_t n() const { return column.size(-1); }
    int64_t columns() const { return many ? right.size(-1) : 1; }
    std::vector<int64_t> result() const {
        std::vector<int64_t> sizes = shape.leading;
        sizes.push_back(n());
        if (many) sizes.push_back(columns());
        return sizes;
    }
};

// Only ranks decide whether right-hand sides are (..., n) or (..., n, k).
PreparedToeplitz prepare_toeplitz(const char* function, const char* right_name, const Tensor& c, const Tensor& r,
                                  const Tensor& right) {
    const Checks check{function};
    PreparedToeplitz prepared{View(c), View(r), View(right), {}, DType::f32, {}, false};
    prepared.type = check.dtype("c", prepared.column, {DType::f32, DType::f64, DType::c64, DType::c128});
    for (const auto& [name, view] : {std::pair{"c", &prepared.column}, {"r", &prepared.row}, {right_name, &prepared.right}}) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        check.dtype(name, *view, {prepared.type});
        check.device(name, *view, prepared.column, "c");
    }
    const int64_t n = prepared.n();
    GDN_REQUIRE(check, n <= kLongestToeplitz, "c", fmt::format("at most {} rows", kLongestToeplitz),
                shape_text(prepared.column));
    GDN_REQUIRE(check, prepared.row.size(-1) == n, "r", fmt::format("(…, {}) as c has", n), shape_text(prepared.row));
    prepared.many = prepared.right.rank > std::max(prepared.column.rank, prepared.row.rank);
    prepared.lines = prepared.right;
    if (prepared.many) --prepared.lines.rank;
    GDN_REQUIRE(check, prepared.lines.size(-1) == n, right_name,
                fmt::format("(…, {}), or with more dimensions than the matrix (…, {}, k)", n, n), shape_text(prepared.right));
    prepared.shape.add(check, "c", prepared.column, "c");
    prepared.shape.add(check, "r", prepared.row, "c");
    prepared.shape.add(check, right_name, prepared.lines, "c and r");
    return prepared;
}

PreparedToeplitz prepare_toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose) {
    return prepare_toeplitz(transpose ? "toeplitz_matvec_transpose" : "toeplitz_matvec", "x", c, r, x);
}
PreparedToeplitz prepare_toeplitz_matvec_out(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose,
                                             const Tensor& out) {
    PreparedToeplitz prepared = prepare_toeplitz_matvec(c, r, x, transpose);
    const Checks check{transpose ? "toeplitz_matvec_transpose" : "toeplitz_matvec"};
    Output(check, out, prepared.result(), prepared.type, prepared.column, "c")
        .apart_from("c", prepared.column)
        .apart_from("r", prepared.row)
        .apart_from("x", prepared.right);
    return prepared;
}

PreparedToeplitz prepare_toeplitz_solve(const Tensor& c, const Tensor& r, const Tensor& b, bool symmetric) {
    return prepare_toeplitz(symmetric ? "toeplitz_solve_symmetric" : "toeplitz_solve", "b", c, r, b);
}

PreparedToeplitz prepare_toeplitz_positive(const Tensor& c, const Tensor& b) {
    PreparedToeplitz prepared = prepare_toeplitz("toeplitz_solve_symmetric", "b", c, c, b);
    const Checks check{"toeplitz_solve_symmetric"};
    check.dtype("c", prepared.column, {DType::f32, DType::f64});
    return prepared;
}

PreparedToeplitz prepare_toeplitz_schur(const Tensor& c, const Tensor& b, double /*epsilon*/) {
    return prepare_toeplitz_positive(c, b);
}
PreparedToeplitz prepare_toeplitz_pcg(const Tensor& c, const Tensor& b, double /*epsilon*/) {
    return prepare_toeplitz_positive(c, b);
}

PreparedToeplitz prepare_toeplitz_gko(const Tensor& c, const Tensor& r, const Tensor& b, double /*epsilon*/) {
    return prepare_toeplitz("toeplitz_solve", "b", c, r, b);
}

PreparedToeplitz prepare_toeplitz_generators(const Tensor& c, const Tensor& r, const Tensor& b) {
    PreparedToeplitz prepared = prepare_toeplitz("toeplitz_solve", "b", c, r, b);
    const Checks check{"toeplitz_solve"};
    GDN_REQUIRE(check, prepared.n() <= kToeplitzEliminateLongest, "c",
                fmt::format("at most {} rows for this kernel", kToeplitzEliminateLongest), shape_text(prepared.column));
    return prepared;
}

struct PreparedElimination {
    View left, right, numbers;
    ToeplitzEliminateProblem problem;
};

PreparedElimination prepare_toeplitz_eliminate(const Tensor& left, const Tensor& right, const Tensor& numbers,
                                               int64_t configuration) {
    const Checks check{"toeplitz_eliminate"};
    PreparedElimination prepared{View(left), View(right), View(numbers), {}};
    for (const auto& [name, view] :
         {std::pair{"left", &prepared.left}, {"right", &prepared.right}, {"numbers", &prepared.numbers}}) {
        check.dtype(name, *view, {DType::c128});
        check.device(name, *view, prepared.left, "left");
        check.rank(name, *view, 3, "(systems, 2 or columns, n)");
        GDN_REQUIRE(check, view->contiguous_tail(3), name, "a contiguous tensor", "strides");
    }
    const int64_t systems = prepared.numbers.size(0), columns = prepared.numbers.size(1), n = prepared.numbers.size(2);
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

void run_toeplitz_matvec(const PreparedToeplitz& prepared, bool transpose, const Tensor& out) {
    const Checks check{transpose ? "toeplitz_matvec_transpose" : "toeplitz_matvec"};
    const int longest = toeplitz_matvec_longest(prepared.type);
    GDN_REQUIRE(check, prepared.n() <= longest, "c", fmt::format("at most {} rows for this kernel", longest),
                shape_text(prepared.column));
    ToeplitzMatvecOperands operands{
        .column = operand(prepared.column), .row = operand(prepared.row), .x = operand(prepared.lines)};
    set_leading(check, "c", prepared.shape.leading,
                {{&prepared.column, &operands.column}, {&prepared.row, &operands.row}, {&prepared.lines, &operands.x}},
                operands);
    ToeplitzMatvecArgs args = toeplitz_matvec_args(operands, transpose);
    args.out = out.data_ptr();
    args.n = static_cast<int>(prepared.n());
    args.x_column_stride = prepared.many ? prepared.right.stride(-1) : 0;
    args.columns = prepared.columns();
    const ToeplitzMatvecProblem problem{operands.rows, args.columns, args.n, prepared.type};
    if (problem.systems == 0 || problem.columns == 0 || problem.n == 0) return;
    const DeviceScope scope(prepared.column.device_index);
    const Target target = target_of(check.function, prepared.column);
    if (toeplitz_by_sums(problem, jit::device_traits(target.ordinal)))
        ToeplitzSums::run(problem, args, target);
    else
        ToeplitzMatvec::run(problem, args, target);
}

// What a kernel that solves systems takes, but for what is its own; `info` has a number for every leading index of the result.
template <class Args>
Args args_to_solve(const Checks& check, const PreparedToeplitz& prepared, int longest, const Tensor& out, const Tensor& info,
                   double epsilon) {
    GDN_REQUIRE(check, prepared.n() <= longest, "c", fmt::format("at most {} rows for this kernel", longest),
                shape_text(prepared.column));
    Args args;
    args.column = operand(prepared.column);
    args.right = operand(prepared.lines);
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
                    {{&prepared.column, &args.column}, {&prepared.row, &args.row}, {&prepared.lines, &args.right}}, args);
    } else {
        set_leading(check, "c", leading, {{&prepared.column, &args.column}, {&prepared.lines, &args.right}}, args);
    }
    return args;
}

}  // namespace

Tensor toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose) {
    const PreparedToeplitz prepared = prepare_toeplitz_matvec(c, r, x, transpose);
    const Tensor out = torch::stable::new_empty(c, prepared.result());
    run_toeplitz_matvec(prepared, transpose, out);
    return out;
}

void toeplitz_matvec_out(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose, const Tensor& out) {
    run_toeplitz_matvec(prepare_toeplitz_matvec_out(c, r, x, transpose, out), transpose, out);
}

void check_toeplitz_matvec(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose, const OptionalTensor& out) {
    out ? prepare_toeplitz_matvec_out(c, r, x, transpose, *out) : prepare_toeplitz_matvec(c, r, x, transpose);
}
void check_toeplitz_solve(const Tensor& c, const Tensor& r, const Tensor& b, bool symmetric) {
    prepare_toeplitz_solve(c, r, b, symmetric);
}
void check_toeplitz_positive(const Tensor& c, const Tensor& b) {
    prepare_toeplitz_positive(c, b);
}

// (T^-1 b, info), info for every leading index of the result.
std::tuple<Tensor, Tensor> toeplitz_schur(const Tensor& c, const Tensor& b, double epsilon) {
    const PreparedToeplitz prepared = prepare_toeplitz_schur(c, b, epsilon);
    const Checks check{"toeplitz_solve_symmetric"};
    const Tensor out = torch::stable::new_empty(c, prepared.result());
    const Tensor info = torch::stable::new_zeros(c, prepared.shape.leading, torch::headeronly::ScalarType::Int);
    const auto args = args_to_solve<ToeplitzSchurArgs>(check, prepared, kToeplitzSchurLongest, out, info, epsilon);
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzSchur::run({args.rows, args.columns, args.n, prepared.type}, args, target_of(check.function, prepared.column));
    return {out, info};
}

// The same by conjugate gradients: info is -1 where they do not converge.
std::tuple<Tensor, Tensor> toeplitz_pcg(const Tensor& c, const Tensor& b, double epsilon) {
    const PreparedToeplitz prepared = prepare_toeplitz_pcg(c, b, epsilon);
    const Checks check{"toeplitz_solve_symmetric"};
    const Tensor out = torch::stable::new_empty(c, prepared.result());
    const Tensor info = torch::stable::new_zeros(c, prepared.shape.leading, torch::headeronly::ScalarType::Int);
    auto args = args_to_solve<ToeplitzPcgArgs>(check, prepared, kToeplitzPcgLongest, out, info, epsilon);
    GDN_REQUIRE(check, args.rows * (args.columns + 1) <= std::numeric_limits<int>::max(), "b",
                "fewer than 2^31 right-hand sides", shape_text(prepared.right));
    const DeviceScope scope(prepared.column.device_index);
    const ToeplitzPcgProblem problem{args.rows, args.columns, args.n, prepared.type};
    const Target target = target_of(check.function, prepared.column);
    const Tensor scratch =
        torch::stable::new_empty(c, {ToeplitzPcg::scratch(problem, target.ordinal)}, torch::headeronly::ScalarType::Double);
    args.scratch = static_cast<double*>(scratch.data_ptr());
    ToeplitzPcg::run(problem, args, target);
    return {out, info};
}

std::tuple<Tensor, Tensor> toeplitz_gko(const Tensor& c, const Tensor& r, const Tensor& b, double epsilon) {
    const PreparedToeplitz prepared = prepare_toeplitz_gko(c, r, b, epsilon);
    const Checks check{"toeplitz_solve"};
    const Tensor out = torch::stable::new_empty(c, prepared.result());
    const Tensor info = torch::stable::new_empty(c, prepared.shape.leading, torch::headeronly::ScalarType::Int);
    const auto args = args_to_solve<ToeplitzGkoArgs>(check, prepared, kToeplitzGkoLongest, out, info, epsilon);
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzGko::run({args.rows, args.columns, args.n, prepared.type}, args, target_of(check.function, prepared.column));
    return {out, info};
}

// (left, right, numbers, scales) for systems in a row, the probe behind their right-hand sides.
std::tuple<Tensor, Tensor, Tensor, Tensor> toeplitz_generators(const Tensor& c, const Tensor& r, const Tensor& b) {
    using torch::headeronly::ScalarType;
    const PreparedToeplitz prepared = prepare_toeplitz_generators(c, r, b);
    const Checks check{"toeplitz_solve"};
    ToeplitzGeneratorsArgs args{.column = operand(prepared.column),
                                .row = operand(prepared.row),
                                .given = operand(prepared.lines),
                                .given_column_stride = prepared.many ? prepared.right.stride(-1) : 0,
                                .n = static_cast<int>(prepared.n()),
                                .columns = prepared.columns()};
    set_leading(check, "c", prepared.shape.leading,
                {{&prepared.column, &args.column}, {&prepared.row, &args.row}, {&prepared.lines, &args.given}}, args);
    const int64_t systems = args.rows, n = prepared.n();
    const Tensor left = torch::stable::new_empty(c, {systems, 2, n}, ScalarType::ComplexDouble);
    const Tensor right = torch::stable::new_empty(c, {systems, 2, n}, ScalarType::ComplexDouble);
    const Tensor numbers = torch::stable::new_empty(c, {systems, args.columns + 1, n}, ScalarType::ComplexDouble);
    const Tensor scales = torch::stable::new_empty(c, {systems, 2}, ScalarType::Double);
    args.left = left.data_ptr(), args.right = right.data_ptr(), args.numbers = numbers.data_ptr();
    args.scales = scales.data_ptr();
    const DeviceScope scope(prepared.column.device_index);
    ToeplitzGenerators::run(prepared.type, args, target_of(check.function, prepared.column));
    return {left, right, numbers, scales};
}

namespace {

// The best that the device has.
ToeplitzEliminateConfig elimination_here(const ToeplitzEliminateProblem& problem, const Target& target) {
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const ToeplitzEliminateConfig config = toeplitz_eliminate_config(problem, device);
    if (problem.n > kToeplitzEliminateLongestPortable || ToeplitzEliminate::fits(config, target)) return config;
    return toeplitz_eliminate_config(problem, device, kToeplitzEliminatePortable);
}

}  // namespace

// (C^-1 numbers, info) for left and right generators; `configuration` of the kernel's, -1 for what is best.
std::tuple<Tensor, Tensor> toeplitz_eliminate(const Tensor& left, const Tensor& right, const Tensor& numbers,
                                              int64_t configuration) {
    const auto [of_rows, of_columns, given, problem] = prepare_toeplitz_eliminate(left, right, numbers, configuration);
    const Checks check{"toeplitz_eliminate"};
    const DeviceScope scope(of_rows.device_index);
    const Target target = target_of(check.function, of_rows);
    const ToeplitzEliminateConfig config = configuration < 0
                                               ? elimination_here(problem, target)
                                               : kToeplitzEliminateConfigurations[static_cast<size_t>(configuration)];
    GDN_REQUIRE(check, ToeplitzEliminate::fits(config, target), "left",
                fmt::format("a GPU with clusters of {} blocks", config.blocks), "another");
    const Tensor found = torch::stable::new_empty(numbers, {problem.systems, problem.columns, problem.n});
    const Tensor info = torch::stable::new_zeros(numbers, {problem.systems}, torch::headeronly::ScalarType::Int);
    const ToeplitzEliminateArgs args{.left = of_rows.data,
                                     .right = of_columns.data,
                                     .numbers = given.data,
                                     .found = found.data_ptr(),
                                     .info = info.data_ptr(),
                                     .n = problem.n,
                                     .columns = static_cast<int>(problem.columns)};
    ToeplitzEliminate::run(config, problem, args, target);
    return {found, info};
}

// Whether `toeplitz_eliminate` is what to solve with on the device of `like`.
bool toeplitz_eliminate_pays_here(const Tensor& like, int64_t systems, int64_t columns, int64_t n) {
    if (n > kToeplitzEliminateLongest) return false;
    const View view(like);
    const DeviceScope scope(view.device_index);
    const Target target = target_of("toeplitz_solve", view);
    const jit::DeviceTraits& device = jit::device_traits(target.ordinal);
    const ToeplitzEliminateProblem problem{systems, columns, static_cast<int>(n)};
    return toeplitz_eliminate_pays(problem, device) && ToeplitzEliminate::fits(elimination_here(problem, target), target);
}

STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    define_checked(m, "toeplitz_matvec", "Tensor c, Tensor r, Tensor x, bool transpose", "Tensor");
    define_checked(m, "toeplitz_solve", "Tensor c, Tensor r, Tensor b, bool symmetric", "(Tensor, Tensor)");
    define_checked(m, "toeplitz_schur", "Tensor c, Tensor b, float epsilon", "(Tensor, Tensor)");
    define_checked(m, "toeplitz_pcg", "Tensor c, Tensor b, float epsilon", "(Tensor, Tensor)");
    define_checked(m, "toeplitz_pcg_long", "Tensor c, Tensor b", "(Tensor, Tensor)");
    define_checked(m, "toeplitz_generators", "Tensor c, Tensor r, Tensor b", "(Tensor, Tensor, Tensor, Tensor)");
    define_checked(m, "toeplitz_eliminate", "Tensor left, Tensor right, Tensor numbers, int configuration", "(Tensor, Tensor)");
    m.def("toeplitz_eliminate_pays(Tensor like, int systems, int columns, int n) -> bool");
    define_checked(m, "toeplitz_gko", "Tensor c, Tensor r, Tensor b, float epsilon", "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CUDA, m) {
    m.impl("toeplitz_matvec", TORCH_BOX(&toeplitz_matvec));
    m.impl("toeplitz_schur", TORCH_BOX(&toeplitz_schur));
    m.impl("toeplitz_pcg", TORCH_BOX(&toeplitz_pcg));
    m.impl("toeplitz_gko", TORCH_BOX(&toeplitz_gko));
    m.impl("toeplitz_generators", TORCH_BOX(&toeplitz_generators));
    m.impl("toeplitz_eliminate", TORCH_BOX(&toeplitz_eliminate));
    m.impl("toeplitz_eliminate_pays", TORCH_BOX(&toeplitz_eliminate_pays_here));
    m.impl("validate_toeplitz_matvec", TORCH_BOX(&OnlyCheck<prepare_toeplitz_matvec>::run));
    m.impl("validate_toeplitz_solve", TORCH_BOX(&OnlyCheck<prepare_toeplitz_solve>::run));
    m.impl("validate_toeplitz_pcg_long", TORCH_BOX(&OnlyCheck<prepare_toeplitz_positive>::run));
}

STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CPU, m) {
    m.impl("validate_toeplitz_matvec", TORCH_BOX(&OnlyCheck<prepare_toeplitz_matvec>::run));
    m.impl("validate_toeplitz_schur", TORCH_BOX(&OnlyCheck<prepare_toeplitz_schur>::run));
    m.impl("validate_toeplitz_gko", TORCH_BOX(&OnlyCheck<prepare_toeplitz_gko>::run));
    m.impl("validate_toeplitz_generators", TORCH_BOX(&OnlyCheck<prepare_toeplitz_generators>::run));
    m.impl("validate_toeplitz_eliminate", TORCH_BOX(&OnlyCheck<prepare_toeplitz_eliminate>::run));
    m.impl("validate_toeplitz_solve", TORCH_BOX(&OnlyCheck<prepare_toeplitz_solve>::run));
    m.impl("validate_toeplitz_pcg", TORCH_BOX(&OnlyCheck<prepare_toeplitz_pcg>::run));
    m.impl("validate_toeplitz_pcg_long", TORCH_BOX(&OnlyCheck<prepare_toeplitz_positive>::run));
}

}  // namespace gdn_cuda::structured
