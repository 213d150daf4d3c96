"""Shapes for tracing, CPU implementations and derivatives of the Toeplitz operators; csrc/apis has what CUDA tensors run."""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..reference import structured_toeplitz_ops as reference
from ..reference.structured_common import broadcast_shapes
from .call import broadcast_leading
from .gradients import Operator, leading_first
from .registration import cpu, fake

_ops = torch.ops.gdn_cuda


# ---- Shapes, checked


def check_line(function: str, argument: str, x: Tensor) -> None:
    if x.dim() < 1:
        raise ValueError(f"{function}: {argument}: expected rank 1 or more, got ()")


def check_lengths(function: str, lines: Mapping[str, Tensor]) -> None:
    """(…,n) each, one n."""
    first, like = next(iter(lines.items()))
    for argument, x in lines.items():
        check_line(function, argument, x)
        if x.shape[-1] != like.shape[-1]:
            raise ValueError(f"{function}: {argument}: expected (…, {like.shape[-1]}) as {first} has, got {tuple(x.shape)}")


def result_shape(
    function: str, lines: Mapping[str, Tensor], argument: str, right: Tensor, sizes: tuple[Any, Any], matrix: str = "matrix"
) -> tuple[Any, ...]:
    """Of right-hand sides (…,from) or (…,from,k) for the matrices with these lines, `sizes` (from, to)."""
    size, result = sizes
    many = right.dim() > max(x.dim() for x in lines.values())
    if right.dim() < 1 or right.shape[-2 if many else -1] != size:
        expected = f"(…, {size}), or with more dimensions than the {matrix} (…, {size}, k)"
        raise ValueError(f"{function}: {argument}: expected {expected}, got {tuple(right.shape)}")
    last = 2 if many else 1
    leading = broadcast_leading(function, {name: (x, 1) for name, x in lines.items()} | {argument: (right, last)})
    return (*leading, result, *right.shape[right.dim() - last + 1 :])


def product_shape(function: str, c: Tensor, r: Tensor, x: Tensor, transpose: bool) -> tuple[Any, ...]:
    check_line(function, "c", c)
    check_line(function, "r", r)
    sizes = (c.shape[-1], r.shape[-1]) if transpose else (r.shape[-1], c.shape[-1])
    return result_shape(function, {"c": c, "r": r}, "x", x, sizes)


def solution_shape(function: str, lines: Mapping[str, Tensor], argument: str, right: Tensor, matrix: str = "matrix") -> Any:
    check_lengths(function, lines)
    n = next(iter(lines.values())).shape[-1]
    return result_shape(function, lines, argument, right, (n, n), matrix)


# ---- Derivatives of T


def _as_columns(c: Tensor, r: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """x and others, which have its shape or a broadcast one, with their right-hand sides in front: (…,k,n)."""
    many = x.dim() > max(c.dim(), r.dim())
    return tuple(y.mT if many else y[..., None, :] for y in (x, *others))


def _cut_or_padded(x: Tensor, size: int) -> Tensor:
    return x if x.shape[-1] == size else torch.nn.functional.pad(x, (0, size - x.shape[-1]))


def _matrix_gradients(c: Tensor, r: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Of c and r where the gradient of T is Σ left rightᴴ, (…,k,n) and (…,k,m): sums along diagonals are Toeplitz products."""
    rows, columns = left.shape[-1], right.shape[-1]
    if rows == 0 or columns == 0:
        return torch.zeros_like(c), torch.zeros_like(r)
    leading = broadcast_shapes(left.shape[:-1], right.shape[:-1])
    left, conjugate = left.expand(*leading, rows), torch.conj_physical(right).expand(*leading, columns)
    # Σ_j left_{j+d} conj(right_j) for c, Σ_j left_j conj(right_{j+d}) for r: upper triangular matrices, times a vector.
    of_c = _by_upper(_cut_or_padded(conjugate, rows), left)
    of_r = _by_upper(_cut_or_padded(left, columns), conjugate)
    of_r = torch.cat([torch.zeros_like(of_r[..., :1]), of_r[..., 1:]], -1)  # r[0] is not read
    return of_c.sum(-2).sum_to_size(c.shape), of_r.sum(-2).sum_to_size(r.shape)


def _by_upper(row: Tensor, x: Tensor) -> Tensor:
    return matvec(torch.cat([row[..., :1], torch.zeros_like(row[..., 1:])], -1), row, x, False)


def _sum(*terms: Tensor | None) -> Tensor | None:
    """Of tangents, where there are some."""
    known = [x for x in terms if x is not None]
    return sum(known[1:], known[0]) if known else None


def _lines(c: Tensor, r: Tensor, of_c: Tensor | None, of_r: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """First column and row of the tangent of T; None where it has none."""
    if of_c is None and of_r is None:
        return None
    return torch.zeros_like(c) if of_c is None else of_c, torch.zeros_like(r) if of_r is None else of_r


# ---- toeplitz_matvec


@fake("toeplitz_matvec")
def _(c, r, x, transpose):
    return x.new_empty(product_shape("toeplitz_matvec_transpose" if transpose else "toeplitz_matvec", c, r, x, transpose))


@cpu("toeplitz_matvec")
def _(c, r, x, transpose):
    return reference.toeplitz_matvec(c, r, x, transpose).contiguous()


def _keep_matvec(ctx, inputs, output):
    *tensors, ctx.transpose = inputs
    return tuple(tensors)


def _matvec_gradients(ctx, grad):
    c, r, x = ctx.saved_tensors
    of_c = of_r = of_x = None
    if ctx.needs_input_grad[2]:
        of_x = matvec(torch.conj_physical(c), torch.conj_physical(r), grad, not ctx.transpose).sum_to_size(x.shape)
    if any(ctx.needs_input_grad[:2]):
        right, left = _as_columns(c, r, x, grad)
        if ctx.transpose:  # the gradient of Tᵀ is transposed
            left, right = torch.conj_physical(right), torch.conj_physical(left)
        of_c, of_r = _matrix_gradients(c, r, left, right)
    return of_c, of_r, of_x, None


def _matvec_tangent(ctx, of_c, of_r, of_x, _):
    c, r, x = ctx.saved_tensors
    lines = _lines(c, r, of_c, of_r)
    return _sum(
        None if lines is None else matvec(*lines, x, ctx.transpose),
        None if of_x is None else matvec(c, r, of_x, ctx.transpose),
    )


def _batched_system(in_dims: Any, c: Tensor, r: Tensor, x: Tensor) -> list[Tensor]:
    """Only ranks say what x is: those of what is mapped over."""
    ranks = [y.dim() - (d is not None) for y, d in zip((c, r, x), in_dims, strict=False)]
    return leading_first(in_dims, (c, r, x), (1, 1, 2 if ranks[2] > max(ranks[:2]) else 1))


def _batched_matvec(in_dims, c, r, x, transpose):
    return matvec(*_batched_system(in_dims, c, r, x), transpose), 0


matvec = Operator("toeplitz_matvec", _keep_matvec, _matvec_gradients, _matvec_tangent, _batched_matvec)


# ---- toeplitz_solve: the solution and info


def _name(symmetric: bool, wait: bool) -> str:
    return "toeplitz_solve" + ("_symmetric" if symmetric else "") + ("" if wait else "_ex")


def _info_to_look_at(like: Tensor, matrices: tuple[int, ...]) -> Tensor:
    """On the CPU, as the operator waits for it; nothing waits for meta tensors."""
    return torch.empty(matrices, dtype=torch.int32, device=like.device if like.device.type == "meta" else "cpu")


@fake("toeplitz_solve")
def _(c, r, b, symmetric, wait):
    shape = solution_shape(_name(symmetric, wait), {"c": c, "r": r}, "b", b)
    matrices = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    return b.new_empty(shape), _info_to_look_at(c, matrices) if wait else c.new_empty(matrices, dtype=torch.int32)


@cpu("toeplitz_solve")
def _(c, r, b, symmetric, wait):
    x, info = reference.toeplitz_solve(c, r, b)
    return x.contiguous(), info.contiguous()


def _keep_solve(ctx, inputs, output):
    c, r, b, ctx.symmetric, _ = inputs
    ctx.mark_non_differentiable(output[1])
    return c, r, b, output[0]


def _solve_gradients(ctx, grad, _):
    c, r, b, x = ctx.saved_tensors
    column, row = (torch.conj_physical(y) for y in reference.transposed(c, r))
    grad_b, _ = solve(column, row, grad, ctx.symmetric, False)
    of_c = of_r = None
    if any(ctx.needs_input_grad[:2]):
        right, left = _as_columns(c, r, x, -grad_b)
        of_c, of_r = _matrix_gradients(c, r, left, right)
    return of_c, of_r, grad_b.sum_to_size(b.shape), None, None


def _solve_tangent(ctx, of_c, of_r, of_b, *_):
    c, r, _b, x = ctx.saved_tensors
    lines = _lines(c, r, of_c, of_r)
    moved = _sum(None if of_b is None else of_b.expand_as(x), None if lines is None else -matvec(*lines, x, False))
    return None if moved is None else solve(c, r, moved, ctx.symmetric, False)[0], None


def _batched_info(info: Tensor, in_dims: Any, c: Tensor, r: Tensor) -> tuple[Tensor, int | None]:
    """Without the leading dimensions that were put between."""
    mapped = any(d is not None for d in in_dims[:2])
    shapes = [tuple(size for i, size in enumerate(y.shape) if i != d)[:-1] for y, d in zip((c, r), in_dims, strict=False)]
    return info.reshape((*(info.shape[:1] if mapped else ()), *broadcast_shapes(*shapes))), 0 if mapped else None


def _batched_solve(in_dims, c, r, b, symmetric, wait):
    if wait:
        function, other = _name(symmetric, True), _name(symmetric, False)
        expected = "a call outside torch.vmap, as it looks at values"
        raise ValueError(f"{function}: info: expected {expected}, got one that is mapped; {other} does not look")
    x, info = solve(*_batched_system(in_dims, c, r, b), symmetric, False)
    info, of_info = _batched_info(info, in_dims, c, r)
    return (x, info), (0, of_info)


solve = Operator("toeplitz_solve", _keep_solve, _solve_gradients, _solve_tangent, _batched_solve)


# ---- toeplitz_solve_positive: the same for symmetric positive definite matrices


@fake("toeplitz_solve_positive")
def _(c, b):
    shape = solution_shape("toeplitz_solve_symmetric_ex", {"c": c}, "b", b)
    return b.new_empty(shape), c.new_empty(c.shape[:-1], dtype=torch.int32)


@cpu("toeplitz_solve_positive")
def _(c, b):
    x, info = reference.toeplitz_schur(c, b)
    return x.contiguous(), reference.of_matrices(info, c.shape[:-1])


def _keep_positive(ctx, inputs, output):
    ctx.mark_non_differentiable(output[1])
    return (*inputs, output[0])


def _positive_gradients(ctx, grad, _):
    c, b, x = ctx.saved_tensors
    grad_b, _ = solve_positive(c, grad)
    of_c = None
    if ctx.needs_input_grad[0]:
        right, left = _as_columns(c, c, x, -grad_b)
        of_c = sum(_matrix_gradients(c, c, left, right))
    return of_c, grad_b.sum_to_size(b.shape)


def _positive_tangent(ctx, of_c, of_b):
    c, _b, x = ctx.saved_tensors
    moved = _sum(None if of_b is None else of_b.expand_as(x), None if of_c is None else -matvec(of_c, of_c, x, False))
    return None if moved is None else solve_positive(c, moved)[0], None


def _batched_positive(in_dims, c, b):
    column, _, right = _batched_system((in_dims[0], in_dims[0], in_dims[1]), c, c, b)
    x, info = solve_positive(column, right)
    info, of_info = _batched_info(info, (in_dims[0], in_dims[0]), c, c)
    return (x, info), (0, of_info)


solve_positive = Operator("toeplitz_solve_positive", _keep_positive, _positive_gradients, _positive_tangent, _batched_positive)


# ---- Gohberg and Semencul: without derivatives, which ops/structured_toeplitz.py has by putting the operators above together


@fake("gs_compute_generators")
def _(c, r):
    check_lengths("gs_compute_generators", {"c": c, "r": r})
    leading = broadcast_leading("gs_compute_generators", {"c": (c, 1), "r": (r, 1)})
    u, v = (c.new_empty((*leading, c.shape[-1])) for _ in range(2))
    return u, v, _info_to_look_at(c, leading)


@cpu("gs_compute_generators")
def _(c, r):
    x, info = reference.toeplitz_solve(c, r, ends(c, r))
    return x[..., 0].contiguous(), x[..., 1].contiguous(), info.contiguous()


def ends(c: Tensor, r: Tensor) -> Tensor:
    """The first and the last unit vector (…,n,2), for every matrix."""
    n = c.shape[-1]
    both = torch.zeros(n, 2, dtype=c.dtype, device=c.device)
    if n:
        both[0, 0] = both[-1, 1] = 1
    return both.expand(*broadcast_shapes(c.shape[:-1], r.shape[:-1]), n, 2)


@fake("toeplitz_inverse_apply")
def _(gs_u, gs_v, x, epsilon):
    return x.new_empty(solution_shape("toeplitz_inverse_apply", {"gs_u": gs_u, "gs_v": gs_v}, "x", x, "generators"))


@cpu("toeplitz_inverse_apply")
def _(gs_u, gs_v, x, epsilon):
    return inverse_product(gs_u, gs_v, x, epsilon).contiguous()


def inverse_product(gs_u: Tensor, gs_v: Tensor, x: Tensor, epsilon: float) -> Tensor:
    """(1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x, NaN where |u_0| ≤ n ε max(|u|, |v|). Differentiable."""
    n, many = gs_u.shape[-1], x.dim() > max(gs_u.dim(), gs_v.dim())
    if n == 0:
        return matvec(gs_u, gs_v, x, False)
    u, v = torch.broadcast_tensors(gs_u, gs_v)

    def lower(first: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
        return matvec(first, torch.zeros_like(first), x, transpose)

    def shifted(first: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(first[..., :1]), first[..., :-1]], -1)

    applied = lower(u, lower(v.flip(-1), x, True)) - lower(shifted(v), lower(shifted(u.flip(-1)), x, True))
    divisor = torch.where(is_regular(gs_u, gs_v, epsilon), u[..., 0], torch.nan)[..., None]
    return applied / (divisor[..., None] if many else divisor)


def is_regular(gs_u: Tensor, gs_v: Tensor, epsilon: float) -> Tensor:
    """Whether u_0 is not zero to working precision."""
    u, v = torch.broadcast_tensors(gs_u.detach(), gs_v.detach())
    return u[..., 0].abs() > u.shape[-1] * epsilon * torch.maximum(u.abs().amax(-1), v.abs().amax(-1))


# ---- The kernels that solve: CPU implementations, with which tests run the plan of csrc/apis/toeplitz_solve.cpp


def _info_of_result(shape: tuple[Any, ...], right: Tensor, *lines: Tensor) -> tuple[Any, ...]:
    return shape[: -2 if right.dim() > max(x.dim() for x in lines) else -1]


def _positive_shapes(c, b, epsilon):
    shape = solution_shape("toeplitz_solve_symmetric_ex", {"c": c}, "b", b)
    return b.new_empty(shape), c.new_empty(_info_of_result(shape, b, c), dtype=torch.int32)


fake("toeplitz_schur")(_positive_shapes)
fake("toeplitz_pcg")(_positive_shapes)


@cpu("toeplitz_schur")
def _(c, b, epsilon):
    return tuple(y.contiguous() for y in reference.toeplitz_schur(c, b))


@cpu("toeplitz_pcg")
def _(c, b, epsilon):
    x, info = reference.toeplitz_schur(c, b)
    return x.contiguous(), info.clamp_min(-1)


@fake("toeplitz_gko")
def _(c, r, b, epsilon):
    shape = solution_shape("toeplitz_solve_ex", {"c": c, "r": r}, "b", b)
    return b.new_empty(shape), c.new_empty(_info_of_result(shape, b, c, r), dtype=torch.int32)


@fake("toeplitz_generators")
def _(c, r, b):
    shape = solution_shape("toeplitz_solve_ex", {"c": c, "r": r}, "b", b)
    *batch, n, columns = shape if b.dim() > max(c.dim(), r.dim()) else (*shape, 1)
    systems = math.prod(batch)
    sides = (b.new_empty((systems, rows, n), dtype=torch.complex128) for rows in (2, 2, columns + 1))
    return *sides, b.new_empty((systems, 2), dtype=torch.float64)


@cpu("toeplitz_generators")
def _(c, r, b):
    return reference.toeplitz_generators(c, r, b)


@fake("toeplitz_eliminate")
def _(left, right, numbers, configuration):
    return torch.empty_like(numbers), left.new_empty(left.shape[:1], dtype=torch.int32)


@cpu("toeplitz_eliminate")
def _(left, right, numbers, configuration):
    return tuple(y.contiguous() for y in reference.toeplitz_eliminate(left, right, numbers))
