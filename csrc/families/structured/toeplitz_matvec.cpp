// Argument checks of all Toeplitz operators, and products with Toeplitz matrices.
#include "toeplitz_matvec.hpp"

#include <torch/csrc/stable/ops.h>

#include <gdn_cuda/structured.hpp>

#include "../../operators/torch_math.hpp"
#include "toeplitz.hpp"
#include "toeplitz_sums.hpp"

namespace gdn_cuda::structured {
namespace {

constexpr int64_t kLongestToeplitz = int64_t{1} << 30;

}  // namespace

// Right-hand sides are (..., n) or (..., n, k), depending on ranks alone.
PreparedToeplitz prepare_toeplitz(const ToeplitzNames& names, const Tensor& c, const Tensor& r, const Tensor& right,
                                  ToeplitzShape shape) {
    const Checks check{names.function};
    PreparedToeplitz prepared{names, View(c), View(r), View(right), {}, DType::f32, {}, false, 0, 0};
    prepared.type = check.dtype(names.column, prepared.column, {DType::f32, DType::f64, DType::c64, DType::c128});
    for (const auto& [name, view] :
         {std::pair{names.column, &prepared.column}, {names.row, &prepared.row}, {names.right, &prepared.right}}) {
        GDN_REQUIRE(check, view->rank >= 1, name, "rank 1 or more", shape_text(*view));
        check.dtype(name, *view, {prepared.type});
        check.device(name, *view, prepared.column, names.column);
    }
    const int64_t rows = prepared.n(), columns = prepared.row.size(-1);
    GDN_REQUIRE(check, rows <= kLongestToeplitz, names.column, fmt::format("at most {} rows", kLongestToeplitz),
                shape_text(prepared.column));
    GDN_REQUIRE(check, columns <= kLongestToeplitz, names.row, fmt::format("at most {} columns", kLongestToeplitz),
                shape_text(prepared.row));
    GDN_REQUIRE(check, columns == rows || shape != ToeplitzShape::square, names.row,
                fmt::format("(…, {}) as {} has", rows, names.column), shape_text(prepared.row));
    prepared.from = shape == ToeplitzShape::transposed ? rows : columns;
    prepared.to = shape == ToeplitzShape::transposed ? columns : rows;
    prepared.many = prepared.right.rank > std::max(prepared.column.rank, prepared.row.rank);
    prepared.vectors = prepared.right;
    if (prepared.many) --prepared.vectors.rank;
    GDN_REQUIRE(
        check, prepared.vectors.size(-1) == prepared.from, names.right,
        fmt::format("(…, {}), or with more dimensions than the {} (…, {}, k)", prepared.from, names.matrix, prepared.from),
        shape_text(prepared.right));
    prepared.shape.add(check, names.column, prepared.column, names.column);
    prepared.shape.add(check, names.row, prepared.row, names.column);
    if (prepared.vectors.rank > 1) {  // the combined name is for an error alone
        const std::string both = fmt::format("{} and {}", names.column, names.row);
        prepared.shape.add(check, names.right, prepared.vectors, both.c_str());
    }
    return prepared;
}

PreparedToeplitz prepare_toeplitz_matvec(const ToeplitzMatvecCall& x) {
    return prepare_toeplitz(matvec_names(x.transpose), x.c, x.r, x.x,
                            x.transpose ? ToeplitzShape::transposed : ToeplitzShape::rectangular);
}

namespace {

// Runs before anything is computed.
void check_out(const PreparedToeplitz& prepared, const Tensor& out) {
    CheckedOutput(prepared.check(), out, prepared.result(), prepared.type, prepared.column, "c")
        .apart_from("c", prepared.column)
        .apart_from("r", prepared.row)
        .apart_from("x", prepared.right);
}

// Whether one block can multiply by the matrix.
bool fits_kernel(const PreparedToeplitz& prepared) {
    return std::max(prepared.from, prepared.to) <= toeplitz_matvec_longest(prepared.type);
}

void run_toeplitz_matvec(const PreparedToeplitz& prepared, bool transpose, const Tensor& out) {
    const Checks check = prepared.check();
    ToeplitzMatvecOperands operands{
        .column = operand(prepared.column), .row = operand(prepared.row), .x = operand(prepared.vectors)};
    set_leading(check, prepared.names.column, prepared.shape.leading,
                {{&prepared.column, &operands.column}, {&prepared.row, &operands.row}, {&prepared.vectors, &operands.x}},
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

// The kernels multiply by square matrices: the shorter dimension is padded with zeros and the result truncated.
Tensor multiply_rectangular(const Tensor& c, const Tensor& r, const Tensor& x, const PreparedToeplitz& prepared,
                            bool transpose) {
    const int64_t order = std::max(prepared.from, prepared.to);
    const auto completed = [&](const Tensor& y, int64_t length, bool rows) {
        if (length == order) return y;
        const std::vector<int64_t> more =
            rows ? std::vector<int64_t>{0, 0, 0, order - length} : std::vector<int64_t>{0, order - length};
        return torch::stable::pad(y, more);
    };
    const Tensor column = completed(c, prepared.n(), false), row = completed(r, prepared.row.size(-1), false);
    const Tensor right = completed(x, prepared.from, prepared.many);
    const Tensor square = toeplitz_matvec_kernel(prepare_toeplitz_matvec({column, row, right, transpose}), transpose, c);
    return torch::stable::contiguous(math::narrow(square, prepared.many ? -2 : -1, 0, prepared.to));
}

int64_t fast_length(int64_t least) {  // the smallest 2^a or 3 * 2^a not below `least`
    const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(least, 1))));
    return power >= 4 && power * 3 / 4 >= least ? power * 3 / 4 : power;
}

// Products by FFT: T is a corner of a circulant matrix.
Tensor by_transforms(const PreparedToeplitz& prepared, const Tensor& c, const Tensor& r, const Tensor& x, bool transpose) {
    const WithoutGradients scope;
    if (prepared.systems() == 0 || prepared.columns() == 0 || prepared.to == 0 || prepared.from == 0)
        return math::zeros(x, prepared.result());
    std::vector<int64_t> column_shape = prepared.matrices(), row_shape = column_shape;
    column_shape.push_back(prepared.n()), row_shape.push_back(prepared.row.size(-1));
    const Tensor first = math::expand(c, column_shape), other = math::expand(r, row_shape);
    const Tensor corner = math::narrow(first, -1, 0, 1);
    const Tensor below = math::without_first(transpose ? other : first), above = math::without_first(transpose ? first : other);
    const int64_t length = fast_length(prepared.from + prepared.to - 1);
    std::vector<int64_t> gap_shape = prepared.matrices();
    gap_shape.push_back(length - (prepared.from + prepared.to - 1));
    const Tensor around = math::cat({corner, below, math::zeros(c, gap_shape), math::flip(above)}, -1);
    const bool real = prepared.type == DType::f32 || prepared.type == DType::f64;
    const char *const forward = real ? "aten::fft_rfft" : "aten::fft_fft", *const inverse =
                                                                               real ? "aten::fft_irfft" : "aten::fft_ifft";
    const Tensor right = prepared.many ? x : torch::stable::unsqueeze(x, -1);
    const Tensor product =
        math::mul(torch::stable::unsqueeze(math::transform(forward, around), -1), math::transform(forward, right, length, -2));
    const Tensor y = math::narrow(math::transform(inverse, product, length, -2), -2, 0, prepared.to);
    return math::reshape(torch::stable::contiguous(y), prepared.result());
}

}  // namespace

Tensor toeplitz_matvec_by_transforms(const Tensor& c, const Tensor& r, const Tensor& x, bool transpose) {
    return by_transforms(prepare_toeplitz_matvec({c, r, x, transpose}), c, r, x, transpose);
}

Tensor toeplitz_matvec_kernel(const PreparedToeplitz& prepared, bool transpose, const Tensor& like) {
    const Tensor out = new_tensor(like, prepared.result());
    run_toeplitz_matvec(prepared, transpose, out);
    return out;
}

namespace {

std::string explain_transforms_in_torch(const PreparedToeplitz& prepared) {
    return fmt::format("torch's transforms: {} rows and columns are more than the {} of one block",
                       std::max(prepared.from, prepared.to), toeplitz_matvec_longest(prepared.type));
}

Tensor multiply(const PreparedToeplitz& prepared, const ToeplitzMatvecCall& x) {
    if (!fits_kernel(prepared)) {
        if (explaining()) remark(explain_transforms_in_torch(prepared));
        return by_transforms(prepared, x.c, x.r, x.x, x.transpose);
    }
    if (prepared.from != prepared.to) return multiply_rectangular(x.c, x.r, x.x, prepared, x.transpose);
    return toeplitz_matvec_kernel(prepared, x.transpose, x.c);
}

}  // namespace

Tensor toeplitz_matvec(const ToeplitzMatvecCall& x) {
    return multiply(prepare_toeplitz_matvec(x), x);
}

GDN_REGISTER(ToeplitzMatvecCall, prepare_toeplitz_matvec, toeplitz_matvec)

// For matrices with more rows than one block can process; tests call it by name on any device.
STABLE_TORCH_LIBRARY_FRAGMENT(gdn_cuda, m) {
    m.def("toeplitz_matvec_by_transforms(Tensor c, Tensor r, Tensor x, bool transpose) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(gdn_cuda, CompositeExplicitAutograd, m) {
    m.impl("toeplitz_matvec_by_transforms", TORCH_BOX(&toeplitz_matvec_by_transforms));
}

namespace {

Tensor product(const ToeplitzProduct& x, bool transpose) {
    require_given(matvec_names(transpose).function, x);
    const ToeplitzMatvecCall call{plain_on_cuda(x.c), plain_on_cuda(x.r), plain_on_cuda(x.x), transpose};
    const PreparedToeplitz prepared = prepare_toeplitz_matvec(call);
    if (x.out) check_out(prepared, *x.out);
    if (!on_gpu(call)) {
        const Tensor found = call_through_torch<ToeplitzMatvecCall, Tensor>(call);
        if (!x.out) return found;
        Tensor written = *x.out;
        return torch::stable::copy_(written, found);
    }
    if (!x.out) return multiply(prepared, call);
    Tensor written = *x.out;
    if (!fits_kernel(prepared) || prepared.from != prepared.to) return torch::stable::copy_(written, multiply(prepared, call));
    run_toeplitz_matvec(prepared, transpose, written);
    return written;
}

}  // namespace
}  // namespace gdn_cuda::structured

namespace gdn_cuda {

Tensor toeplitz_matvec(const ToeplitzProduct& x) {
    return structured::product(x, false);
}

Tensor toeplitz_matvec_transpose(const ToeplitzProduct& x) {
    return structured::product(x, true);
}

}  // namespace gdn_cuda
