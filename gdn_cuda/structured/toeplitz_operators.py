"""Shapes for tracing, CPU implementations and derivatives of the Toeplitz operators; CUDA tensors run csrc/families."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable, register
from ..operators.gradients import leading_first
from . import reference_toeplitz_operators as reference
from .call import broadcast_leading
from .reference_common import broadcast_shapes

# ---- Shapes, checked


def check_vector(function: str, argument: str, x: Tensor) -> None:
    if x.dim() < 1:
        raise ValueError(f"{function}: {argument}: expected rank 1 or more, got ()")


def check_lengths(function: str, vectors: Mapping[str, Tensor]) -> None:
    """Checks that vectors (…,n) have the same n."""
    first, like = next(iter(vectors.items()))
    for argument, x in vectors.items():
        check_vector(function, argument, x)
        if x.shape[-1] != like.shape[-1]:
            raise ValueError(f"{function}: {argument}: expected (…, {like.shape[-1]}) as {first} has, got {tuple(x.shape)}")


def result_shape(
    function: str, vectors: Mapping[str, Tensor], argument: str, right: Tensor, sizes: tuple[Any, Any], matrix: str = "matrix"
) -> tuple[Any, ...]:
    """The result's shape for right-hand sides (…,from) or (…,from,k) and matrices with these first columns and rows; `sizes` is
    (from, to)."""
    size, result = sizes
    many = right.dim() > max(x.dim() for x in vectors.values())
    if right.dim() < 1 or right.shape[-2 if many else -1] != size:
        expected = f"(…, {size}), or with more dimensions than the {matrix} (…, {size}, k)"
        raise ValueError(f"{function}: {argument}: expected {expected}, got {tuple(right.shape)}")
    last = 2 if many else 1
    leading = broadcast_leading(function, {name: (x, 1) for name, x in vectors.items()} | {argument: (right, last)})
    return (*leading, result, *right.shape[right.dim() - last + 1 :])


def product_shape(function: str, c: Tensor, r: Tensor, x: Tensor, transpose: bool) -> tuple[Any, ...]:
    check_vector(function, "c", c)
    check_vector(function, "r", r)
    sizes = (c.shape[-1], r.shape[-1]) if transpose else (r.shape[-1], c.shape[-1])
    return result_shape(function, {"c": c, "r": r}, "x", x, sizes)


def solution_shape(function: str, vectors: Mapping[str, Tensor], argument: str, right: Tensor, matrix: str = "matrix") -> Any:
    check_lengths(function, vectors)
    n = next(iter(vectors.values())).shape[-1]
    return result_shape(function, vectors, argument, right, (n, n), matrix)


# ---- Derivatives of T


def _as_columns(c: Tensor, r: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Moves right-hand sides to the front, (…,k,n), in x and in others that broadcast with it."""
    many = x.dim() > max(c.dim(), r.dim())
    return tuple(y.mT if many else y[..., None, :] for y in (x, *others))


def _resized(x: Tensor, size: int) -> Tensor:
    return x if x.shape[-1] == size else torch.nn.functional.pad(x, (0, size - x.shape[-1]))


def _matrix_gradients(c: Tensor, r: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of c and r if T's gradient is Σ left rightᴴ, (…,k,n) and (…,k,m): sums of its diagonals, as Toeplitz
    products."""
    rows, columns = left.shape[-1], right.shape[-1]
    if rows == 0 or columns == 0:
        return torch.zeros_like(c), torch.zeros_like(r)
    leading = broadcast_shapes(left.shape[:-1], right.shape[:-1])
    left, conjugate = left.expand(*leading, rows), torch.conj_physical(right).expand(*leading, columns)
    # Σ_j left_{j+d} conj(right_j) for c, Σ_j left_j conj(right_{j+d}) for r: upper triangular Toeplitz matrices times a vector.
    dc = _by_upper(_resized(conjugate, rows), left)
    dr = _by_upper(_resized(left, columns), conjugate)
    dr = torch.cat([torch.zeros_like(dr[..., :1]), dr[..., 1:]], -1)  # r[0] is not read
    return dc.sum(-2).sum_to_size(c.shape), dr.sum(-2).sum_to_size(r.shape)


def _by_upper(row: Tensor, x: Tensor) -> Tensor:
    return matvec(torch.cat([row[..., :1], torch.zeros_like(row[..., 1:])], -1), row, x, False)


def _sum(*terms: Tensor | None) -> Tensor | None:
    """The sum of the tangents that are not None, or None."""
    known = [x for x in terms if x is not None]
    return sum(known[1:], known[0]) if known else None


def _matrix_tangent(c: Tensor, r: Tensor, dc: Tensor | None, dr: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """First column and row of the tangent of T, or None without one."""
    if dc is None and dr is None:
        return None
    return torch.zeros_like(c) if dc is None else dc, torch.zeros_like(r) if dr is None else dr


# ---- toeplitz_matvec


def _matvec_shape(x: Any) -> Tensor:
    function = "toeplitz_matvec_transpose" if x.transpose else "toeplitz_matvec"
    return x.x.new_empty(product_shape(function, x.c, x.r, x.x, x.transpose))


def _matvec_gradients(x: Any, needs: Any, grad: Tensor) -> dict[str, Any]:
    found = {}
    if needs.x:
        dx = matvec(torch.conj_physical(x.c), torch.conj_physical(x.r), grad, not x.transpose)
        found["x"] = dx.sum_to_size(x.x.shape)
    if needs.c or needs.r:
        right, left = _as_columns(x.c, x.r, x.x, grad)
        if x.transpose:  # the gradient of Tᵀ is transposed
            left, right = torch.conj_physical(right), torch.conj_physical(left)
        found["c"], found["r"] = _matrix_gradients(x.c, x.r, left, right)
    return found


def _matvec_tangent(x: Any, of: Any) -> Tensor | None:
    vectors = _matrix_tangent(x.c, x.r, of.c, of.r)
    return _sum(
        None if vectors is None else matvec(*vectors, x.x, x.transpose),
        None if of.x is None else matvec(x.c, x.r, of.x, x.transpose),
    )


def _batched_system(x: Any, dims: Any, vectors: tuple[str, ...], right: str) -> list[Tensor]:
    """Ranks distinguish vectors from columns, so ranks before mapping are used."""
    ranks = {name: getattr(x, name).dim() - (getattr(dims, name) is not None) for name in (*vectors, right)}
    columns = ranks.pop(right) > max(ranks.values())
    return leading_first(x, dims, dict.fromkeys(vectors, 1) | {right: 2 if columns else 1})


def _batched_matvec(x: Any, dims: Any) -> Any:
    return matvec(*_batched_system(x, dims, ("c", "r"), "x"), x.transpose), 0


matvec = Differentiable(
    "toeplitz_matvec",
    shapes=_matvec_shape,
    reference=reference.toeplitz_matvec,
    backward=_matvec_gradients,
    tangent=_matvec_tangent,
    batched=_batched_matvec,
)


# ---- toeplitz_solve: the solution and info


def _name(symmetric: bool, wait: bool) -> str:
    return "toeplitz_solve" + ("_symmetric" if symmetric else "") + ("" if wait else "_ex")


def _info_to_look_at(like: Tensor, matrices: tuple[int, ...]) -> Tensor:
    """info is on the CPU, as the operator waits for it, except for meta tensors."""
    return torch.empty(matrices, dtype=torch.int32, device=like.device if like.device.type == "meta" else "cpu")


def _solve_shapes(x: Any) -> tuple[Tensor, Tensor]:
    shape = solution_shape(_name(x.symmetric, x.wait), {"c": x.c, "r": x.r}, "b", x.b)
    matrices = broadcast_shapes(x.c.shape[:-1], x.r.shape[:-1])
    info = _info_to_look_at(x.c, matrices) if x.wait else x.c.new_empty(matrices, dtype=torch.int32)
    return x.b.new_empty(shape), info


def _solve_gradients(x: Any, needs: Any, grad: Tensor, _: Any) -> dict[str, Any]:
    column, row = (torch.conj_physical(y) for y in reference.transposed(x.c, x.r))
    grad_b, _ = solve(column, row, grad, x.symmetric, False)
    found = {"b": grad_b.sum_to_size(x.b.shape)}
    if needs.c or needs.r:
        right, left = _as_columns(x.c, x.r, x.results[0], -grad_b)
        found["c"], found["r"] = _matrix_gradients(x.c, x.r, left, right)
    return found


def _solve_tangent(x: Any, of: Any) -> tuple[Tensor | None, None]:
    solution, vectors = x.results[0], _matrix_tangent(x.c, x.r, of.c, of.r)
    by_matrix = None if vectors is None else -matvec(*vectors, solution, False)
    moved = _sum(None if of.b is None else of.b.expand_as(solution), by_matrix)
    return None if moved is None else solve(x.c, x.r, moved, x.symmetric, False)[0], None


def _batched_info(info: Tensor, x: Any, dims: Any, vectors: tuple[str, ...]) -> tuple[Tensor, int | None]:
    """Removes the leading dimensions that were inserted."""
    mapped = any(getattr(dims, name) is not None for name in vectors)
    given = ((getattr(x, name), getattr(dims, name)) for name in vectors)
    shapes = [tuple(size for i, size in enumerate(y.shape) if i != d)[:-1] for y, d in given]
    return info.reshape((*(info.shape[:1] if mapped else ()), *broadcast_shapes(*shapes))), 0 if mapped else None


def _batched_solve(x: Any, dims: Any) -> Any:
    if x.wait:
        function, other = _name(x.symmetric, True), _name(x.symmetric, False)
        expected = "a call outside torch.vmap, as it looks at values"
        raise ValueError(f"{function}: info: expected {expected}, got one that is mapped; {other} does not look")
    solution, info = solve(*_batched_system(x, dims, ("c", "r"), "b"), x.symmetric, False)
    info, info_dim = _batched_info(info, x, dims, ("c", "r"))
    return (solution, info), (0, info_dim)


solve = Differentiable(
    "toeplitz_solve",
    shapes=_solve_shapes,
    reference=reference.toeplitz_solve,
    backward=_solve_gradients,
    tangent=_solve_tangent,
    batched=_batched_solve,
    uses_results=True,
)


# ---- toeplitz_solve_positive: for symmetric positive definite matrices


def _positive_shapes(x: Any) -> tuple[Tensor, Tensor]:
    shape = solution_shape("toeplitz_solve_symmetric_ex", {"c": x.c}, "b", x.b)
    return x.b.new_empty(shape), x.c.new_empty(x.c.shape[:-1], dtype=torch.int32)


def _positive_on_cpu(x: Any) -> tuple[Tensor, Tensor]:
    solution, info = reference.toeplitz_schur(x)
    return solution.contiguous(), reference.info_per_matrix(info, x.c.shape[:-1])


def _positive_gradients(x: Any, needs: Any, grad: Tensor, _: Any) -> dict[str, Any]:
    grad_b, _ = solve_positive(x.c, grad)
    found = {"b": grad_b.sum_to_size(x.b.shape)}
    if needs.c:
        right, left = _as_columns(x.c, x.c, x.results[0], -grad_b)
        dcolumn, drow = _matrix_gradients(x.c, x.c, left, right)
        found["c"] = dcolumn + drow
    return found


def _positive_tangent(x: Any, of: Any) -> tuple[Tensor | None, None]:
    solution = x.results[0]
    by_matrix = None if of.c is None else -matvec(of.c, of.c, solution, False)
    moved = _sum(None if of.b is None else of.b.expand_as(solution), by_matrix)
    return None if moved is None else solve_positive(x.c, moved)[0], None


def _batched_positive(x: Any, dims: Any) -> Any:
    solution, info = solve_positive(*_batched_system(x, dims, ("c",), "b"))
    info, info_dim = _batched_info(info, x, dims, ("c",))
    return (solution, info), (0, info_dim)


solve_positive = Differentiable(
    "toeplitz_solve_positive",
    shapes=_positive_shapes,
    cpu=_positive_on_cpu,
    backward=_positive_gradients,
    tangent=_positive_tangent,
    batched=_batched_positive,
    uses_results=True,
)


# ---- Gohberg and Semencul: no derivatives; for those toeplitz.py composes the operators above


def _generator_shapes(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_lengths("gs_compute_generators", {"c": x.c, "r": x.r})
    leading = broadcast_leading("gs_compute_generators", {"c": (x.c, 1), "r": (x.r, 1)})
    u, v = (x.c.new_empty((*leading, x.c.shape[-1])) for _ in range(2))
    return u, v, _info_to_look_at(x.c, leading)


def _generators_of(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    columns, info = reference.solved(x.c, x.r, ends(x.c, x.r))
    return columns[..., 0], columns[..., 1], info


def ends(c: Tensor, r: Tensor) -> Tensor:
    """The first and the last unit vector (…,n,2), for every matrix."""
    n = c.shape[-1]
    both = torch.zeros(n, 2, dtype=c.dtype, device=c.device)
    if n:
        both[0, 0] = both[-1, 1] = 1
    return both.expand(*broadcast_shapes(c.shape[:-1], r.shape[:-1]), n, 2)


def _applied_shape(x: Any) -> Tensor:
    vectors = {"gs_u": x.gs_u, "gs_v": x.gs_v}
    return x.x.new_empty(solution_shape("toeplitz_inverse_apply", vectors, "x", x.x, "generators"))


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


generators = register("gs_compute_generators", shapes=_generator_shapes, reference=_generators_of)
inverse_apply = register(
    "toeplitz_inverse_apply",
    shapes=_applied_shape,
    reference=lambda x: inverse_product(x.gs_u, x.gs_v, x.x, x.epsilon),
)


# ---- CPU equivalents of the solvers' kernels, with which tests run toeplitz_solve.cpp


def _result_info_shape(shape: tuple[Any, ...], right: Tensor, *vectors: Tensor) -> tuple[Any, ...]:
    return shape[: -2 if right.dim() > max(x.dim() for x in vectors) else -1]


def _symmetric_shapes(x: Any) -> tuple[Tensor, Tensor]:
    shape = solution_shape("toeplitz_solve_symmetric_ex", {"c": x.c}, "b", x.b)
    return x.b.new_empty(shape), x.c.new_empty(_result_info_shape(shape, x.b, x.c), dtype=torch.int32)


def _pcg(x: Any) -> tuple[Tensor, Tensor]:
    solution, info = reference.toeplitz_schur(x)
    return solution, info.clamp_min(-1)


def _gko_shapes(x: Any) -> tuple[Tensor, Tensor]:
    shape = solution_shape("toeplitz_solve_ex", {"c": x.c, "r": x.r}, "b", x.b)
    return x.b.new_empty(shape), x.c.new_empty(_result_info_shape(shape, x.b, x.c, x.r), dtype=torch.int32)


def _generators_shapes(x: Any) -> tuple[Tensor, ...]:
    shape = solution_shape("toeplitz_solve_ex", {"c": x.c, "r": x.r}, "b", x.b)
    *batch, n, columns = shape if x.b.dim() > max(x.c.dim(), x.r.dim()) else (*shape, 1)
    systems = math.prod(batch)
    sides = (x.b.new_empty((systems, rows, n), dtype=torch.complex128) for rows in (2, 2, columns + 1))
    return *sides, x.b.new_empty((systems, 2), dtype=torch.float64)


def _eliminated_shapes(x: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x.rhs), x.left.new_empty(x.left.shape[:1], dtype=torch.int32)


register("toeplitz_schur", shapes=_symmetric_shapes, reference=reference.toeplitz_schur)
register("toeplitz_pcg", shapes=_symmetric_shapes, reference=_pcg)
register("toeplitz_gko", shapes=_gko_shapes)
register("toeplitz_generators", shapes=_generators_shapes, reference=reference.toeplitz_generators)
register("toeplitz_eliminate", shapes=_eliminated_shapes, reference=reference.toeplitz_eliminate)
