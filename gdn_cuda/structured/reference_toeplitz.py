"""Toeplitz operators in fp64 on the dense matrix: T[i,j] = c[i−j] below and on the diagonal, r[j−i] above it.

c is the first column (…,n) and r the first row (…,m), m = n except for products; r[0] is not read, and its gradient is zero. A
right-hand side with more dimensions than c and r is (…,n,k), k columns; any other is (…,n). Ranks alone decide, never n or k: a
batch of vectors with one matrix needs c[None]. Differentiable in every input, real and complex; nothing is conjugated.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..operators.schema import refuse
from .reference_common import (
    broadcast_shapes,
    check_last,
    near_one,
    residual,
    roots_of_unity,
    same_dtype,
    widened,
    working_epsilon,
)

_REFINEMENTS = 4  # each adds −log10(κ · 1e-16) correct digits


def toeplitz(c: Tensor, r: Tensor) -> Tensor:
    """The matrix (…,n,m)."""
    return _dense("toeplitz", c, r)


def _dense(function: str, c: Tensor, r: Tensor) -> Tensor:
    c, r = same_dtype(*widened(function, c=c, r=r))
    if r.dim() < 1:
        refuse(function, "r", "rank 1 or more", tuple(r.shape))
    leading = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    rows, columns = c.shape[-1], r.shape[-1]
    c, r = c.expand(*leading, rows), r.expand(*leading, columns)
    offsets = torch.arange(rows, device=c.device)[:, None] - torch.arange(columns, device=c.device) + max(columns - 1, 0)
    return torch.cat([r[..., 1:].flip(-1), c], -1)[..., offsets]


def _square(function: str, c: Tensor, r: Tensor) -> Tensor:
    check_last(function, "r", r, c.shape[-1], "c")
    return _dense(function, c, r)


def _on_columns(
    function: str, argument: str, generators: tuple[Tensor, ...], x: Tensor, run: Callable[[Tensor], Tensor], n: int
) -> Tensor:
    """Calls `run`, whose argument is (…,n,k), with vectors or columns."""
    many = x.dim() > max(g.dim() for g in generators)
    if x.dim() < 1 or x.shape[-2 if many else -1] != n:
        refuse(function, argument, f"(…, {n}), or with more dimensions than the matrix (…, {n}, k)", tuple(x.shape))
    return run(x) if many else run(x[..., None]).squeeze(-1)


def toeplitz_matvec(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """T x; T may be rectangular, c (…,n), r (…,m) and x (…,m)."""
    matrix, x = same_dtype(_dense("toeplitz_matvec", c, r), *widened("toeplitz_matvec", x=x))
    return _on_columns("toeplitz_matvec", "x", (c, r), x, lambda x: matrix @ x, r.shape[-1])


def toeplitz_matvec_transpose(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """Tᵀ x, x (…,n)."""
    matrix, x = same_dtype(_dense("toeplitz_matvec_transpose", c, r), *widened("toeplitz_matvec_transpose", x=x))
    return _on_columns("toeplitz_matvec_transpose", "x", (c, r), x, lambda x: matrix.mT @ x, c.shape[-1])


def toeplitz_solve(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """T⁻¹ b to fp64's last digits; LinAlgError if one of the matrices is singular to the working precision of the inputs."""
    x, info = _solve_ex("toeplitz_solve", c, r, b)
    return _checked("toeplitz_solve", x, info)


def toeplitz_solve_symmetric(c: Tensor, b: Tensor) -> Tensor:
    """T⁻¹ b for r = c, so T = Tᵀ; a Hermitian matrix is `toeplitz_solve(c, c.conj(), b)`."""
    x, info = _solve_ex("toeplitz_solve_symmetric", c, c, b)
    return _checked("toeplitz_solve_symmetric", x, info)


def toeplitz_solve_ex(c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info), without errors. info has an int32 per matrix, as LAPACK's xGESVX: 0; or k, 1 ≤ k ≤ n: pivot k is
    exactly zero and the solution is NaN; or n + 1: 1 / (‖T‖₁ ‖T⁻¹‖₁) is below the inputs' epsilon (fp32's at least)."""
    return _solve_ex("toeplitz_solve_ex", c, r, b)


def _solve_ex(function: str, c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    epsilon = working_epsilon(c, r, b)
    matrix, right = same_dtype(_square(function, c, r), *widened(function, b=b))
    matrix, matrix_exponent = near_one(matrix, -2, -1)
    info = _info(matrix.detach(), epsilon)

    def run(right: Tensor) -> Tensor:
        right, right_exponent = near_one(right, -2)
        back = right_exponent - matrix_exponent  # applied in two parts: the sum may overflow where the solution does not
        half = (back / 2).floor()
        return _solution(matrix, right, info) * torch.exp2(half) * torch.exp2(back - half)

    solved = _on_columns(function, "b", (c, r), right, run, c.shape[-1])
    return solved, info


@torch.no_grad()
def _info(matrix: Tensor, epsilon: float) -> Tensor:
    n = matrix.shape[-1]
    inverse, info = torch.linalg.inv_ex(matrix)
    if n == 0:
        return info
    conditioned = torch.linalg.matrix_norm(matrix, 1) * torch.linalg.matrix_norm(inverse, 1) <= 1 / epsilon  # False for NaN
    return torch.where((info == 0) & ~conditioned, n + 1, info)


def _solution(matrix: Tensor, right: Tensor, info: Tensor) -> Tensor:
    n = matrix.shape[-1]
    zero_pivot = ((info > 0) & (info <= n))[..., None, None]
    invertible = torch.where(zero_pivot, torch.eye(n, dtype=matrix.dtype, device=matrix.device), matrix)
    with torch.no_grad():
        lu, pivots = torch.linalg.lu_factor(invertible)
        x = torch.linalg.lu_solve(lu, pivots, right)
        for _ in range(_REFINEMENTS):
            x = x + torch.linalg.lu_solve(lu, pivots, residual(invertible, x, right))
    # x + T⁻¹ (b − T x) is T⁻¹ b for any x: derivatives of every order are correct, and the value is that of the refined x.
    step = torch.linalg.solve(invertible, right - invertible @ x)
    return torch.where(zero_pivot, torch.nan, x + (step - step.detach()))


def _checked(function: str, x: Tensor, info: Tensor) -> Tensor:
    if bool(info.any()):
        raise torch.linalg.LinAlgError(
            f"{function}: c, r: expected matrices that are nonsingular in working precision, got info {info.tolist()}"
        )
    return x


def gs_compute_generators(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """(u, v): the first and last column of T⁻¹, (…,n) each. They exist whenever T⁻¹ does, even if u_0 is zero."""
    n = c.shape[-1]
    ends = torch.zeros(n, 2, dtype=torch.promote_types(c.dtype, r.dtype), device=c.device)
    if n:
        ends[0, 0] = ends[-1, 1] = 1
    batch = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    columns, info = _solve_ex("gs_compute_generators", c, r, ends.expand(*batch, n, 2))
    u, v = _checked("gs_compute_generators", columns, info).unbind(-1)
    return u, v


def toeplitz_inverse_apply(gs_u: Tensor, gs_v: Tensor, x: Tensor) -> Tensor:
    """T⁻¹ x = (1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x, L(·) lower triangular Toeplitz, J reversal, S shift down.

    u_0 is det of the leading minor of order n − 1 over det T. If it is zero to working precision, |u_0| ≤ n ε max(|u|, |v|),
    the formula is undefined, though T⁻¹ may exist: LinAlgError.
    """
    function = "toeplitz_inverse_apply"
    epsilon = working_epsilon(gs_u, gs_v)
    u, v, x = same_dtype(*widened(function, gs_u=gs_u, gs_v=gs_v, x=x))
    check_last(function, "gs_v", v, u.shape[-1], "gs_u")
    n = u.shape[-1]
    if n:
        largest = torch.maximum(u.detach().abs().amax(-1), v.detach().abs().amax(-1))
        vanishing = ~(u.detach()[..., 0].abs() > n * epsilon * largest)
        if bool(vanishing.any()):
            raise torch.linalg.LinAlgError(
                f"{function}: gs_u: expected u[0] that is not zero in working precision, got {u[..., 0].tolist()}: the leading "
                "minor of order n - 1 is singular; toeplitz_solve does not need it"
            )

    def lower(first: Tensor) -> Tensor:
        return _dense(function, first, torch.zeros_like(first))

    def shifted(first: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(first[..., :1]), first[..., :-1]], -1)

    products = lower(u) @ lower(v.flip(-1)).mT - lower(shifted(v)) @ lower(shifted(u.flip(-1))).mT
    return _on_columns(function, "x", (gs_u, gs_v), x, lambda x: products @ x / u[..., :1, None], n)


def toeplitz_to_cauchy(c: Tensor, r: Tensor) -> Tensor:
    """F T F⁻¹ (…,n,n), complex; F[j,k] = e^{−2πi jk/n} / √n. Its entries off the diagonal are (ĝ_i·ĥ_j) / (ω_i − ω_j) with
    ω_i = e^{−2πi i/n} and generators of rank 2: those of Z T − T Z."""
    matrix = _square("toeplitz_to_cauchy", c, r).to(torch.complex128)
    n = matrix.shape[-1]
    places = torch.arange(n, device=matrix.device)
    dft = roots_of_unity(places[:, None] * places, n) / max(n, 1) ** 0.5
    return dft @ matrix @ dft.conj()
