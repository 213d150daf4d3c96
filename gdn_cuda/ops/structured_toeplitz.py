"""Toeplitz matrices: c (…,n) is the first column, r (…,n) the first row; c[0] wins, and r[0] is not read.

A right-hand side with more dimensions than c and r is (…,n,k), k of them; any other is (…,n). Only ranks decide: for a batch of
vectors under one matrix give c[None]. Leading dimensions broadcast. Dtypes meet as torch's promotion says; bfloat16 and float16
are computed in fp32, and results have them again. Complex matrices are not conjugated. Gradients flow to every input.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .structured import _as_one
from .structured_toeplitz_registration import product
from .structured_toeplitz_solve import explain_toeplitz_solve as explain_toeplitz_solve

_solve = torch.ops.gdn_cuda.toeplitz_solve.default


def _computed(function: str, **tensors: Tensor) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """The dtype they meet in, and each in the one that is computed with."""
    same = _as_one(function, **tensors)
    dtype = same[0].dtype
    return dtype, tuple(x.float() for x in same) if dtype in (torch.bfloat16, torch.float16) else same


def _multiply(function: str, c: Tensor, r: Tensor, x: Tensor, transpose: bool) -> Tensor:
    dtype, (c, r, x) = _computed(function, c=c, r=r, x=x)
    return product(c, r, x, transpose).to(dtype)


def toeplitz_matvec(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """T x."""
    return _multiply("toeplitz_matvec", c, r, x, False)


def toeplitz_matvec_transpose(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """Tᵀ x."""
    return _multiply("toeplitz_matvec_transpose", c, r, x, True)


def toeplitz_solve_ex(c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for any T, with pivoting; nothing is raised, and nothing waits for a GPU.

    info has an int32 for every matrix, as LAPACK's xGESVX: 0; or k, 1 ≤ k ≤ n: pivot k is zero and the solution is NaN; or
    n + 1: 1 / (‖T‖₁ ‖T⁻¹‖) is below the epsilon of what is computed with, so no digit of the solution need be right.
    """
    dtype, (c, r, b) = _computed("toeplitz_solve", c=c, r=r, b=b)
    x, info = _solve(c, r, b, False)
    return x.to(dtype), info


def toeplitz_solve_symmetric_ex(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for r = c, as `toeplitz_solve_ex`."""
    dtype, (c, b) = _computed("toeplitz_solve_symmetric", c=c, b=b)
    x, info = _solve(c, c, b, True)
    return x.to(dtype), info


def _regular(function: str, arguments: str, info: Tensor) -> None:
    if bool(info.any()):
        raise torch.linalg.LinAlgError(
            f"{function}: {arguments}: expected matrices that are nonsingular in working precision, got info {info.tolist()}"
        )


def toeplitz_solve(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """T⁻¹ b for any T; LinAlgError where one is singular to working precision. Waits for a GPU to know it: under graph capture
    and in compiled code, `toeplitz_solve_ex`."""
    x, info = toeplitz_solve_ex(c, r, b)
    _regular("toeplitz_solve", "c, r", info)
    return x


def toeplitz_solve_symmetric(c: Tensor, b: Tensor) -> Tensor:
    """T⁻¹ b for r = c, so T = Tᵀ, as `toeplitz_solve`. A Hermitian matrix is `toeplitz_solve(c, c.conj(), b)`."""
    x, info = toeplitz_solve_symmetric_ex(c, b)
    _regular("toeplitz_solve_symmetric", "c", info)
    return x


def gs_compute_generators(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """(u, v): the first and last column of T⁻¹, (…,n) each; LinAlgError for singular matrices, so it waits. They exist whenever
    T⁻¹ does, also where u[0] is zero."""
    dtype, (c, r) = _computed("gs_compute_generators", c=c, r=r)
    n = c.shape[-1] if c.dim() else 0
    ends = torch.zeros(n, 2, dtype=c.dtype, device=c.device)
    if n:
        ends[0, 0] = ends[-1, 1] = 1
    x, info = _solve(c, r, ends.expand(*torch.broadcast_shapes(c.shape[:-1], r.shape[:-1]), n, 2), False)
    _regular("gs_compute_generators", "c, r", info)
    return x[..., 0].to(dtype), x[..., 1].to(dtype)


def toeplitz_inverse_apply(gs_u: Tensor, gs_v: Tensor, x: Tensor) -> Tensor:
    """T⁻¹ x = (1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x from the first and last column of T⁻¹ (Gohberg, Semencul); L(·) lower
    triangular Toeplitz, J reversal, S shift down.

    Where u_0 is zero to working precision, |u_0| ≤ n ε max(|u|, |v|), the formula does not exist, though T⁻¹ may: LinAlgError
    for CPU tensors, NaN on a GPU and in compiled code.
    """
    function = "toeplitz_inverse_apply"
    dtype, (u, v, x) = _computed(function, gs_u=gs_u, gs_v=gs_v, x=x)
    for argument, given in (("gs_u", u), ("gs_v", v)):
        if given.dim() < 1 or given.shape[-1] != u.shape[-1]:
            expected = f"(…, {u.shape[-1]}) as gs_u has" if u.dim() else "rank 1 or more"
            raise ValueError(f"{function}: {argument}: expected {expected}, got {tuple(given.shape)}")
    n, many = u.shape[-1], x.dim() > max(u.dim(), v.dim())
    if x.dim() < 1 or x.shape[-2 if many else -1] != n:
        expected = f"(…, {n}), or with more dimensions than the generators (…, {n}, k)"
        raise ValueError(f"{function}: x: expected {expected}, got {tuple(x.shape)}")
    if n == 0:
        return product(u, v, x, False).to(dtype)
    # Only ranks tell vectors from columns, so both generators get the larger rank.
    u, v = torch.broadcast_tensors(u, v)
    largest = torch.maximum(u.detach().abs().amax(-1), v.detach().abs().amax(-1))
    regular = u.detach()[..., 0].abs() > n * torch.finfo(u.dtype).eps * largest
    if not torch.compiler.is_compiling() and u.device.type == "cpu" and not bool(regular.all()):
        raise torch.linalg.LinAlgError(
            f"{function}: gs_u: expected u[0] that is not zero in working precision, got {u[..., 0].tolist()}: the leading "
            "minor of order n - 1 is singular; toeplitz_solve does not need it"
        )

    def lower(first: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
        return product(first, torch.zeros_like(first), x, transpose)

    def shifted(first: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(first[..., :1]), first[..., :-1]], -1)

    applied = lower(u, lower(v.flip(-1), x, True)) - lower(shifted(v), lower(shifted(u.flip(-1)), x, True))
    divisor = torch.where(regular, u[..., 0], torch.nan)[..., None]
    return (applied / (divisor[..., None] if many else divisor)).to(dtype)


def toeplitz_to_cauchy(c: Tensor, r: Tensor) -> Tensor:
    """F T F⁻¹ (…,n,n), complex; F[j,k] = e^{−2πi jk/n} / √n. Off the diagonal its entries are (ĝ_i·ĥ_j) / (ω_i − ω_j) with
    ω_i = e^{−2πi i/n} and generators of rank 2, those of Z T − T Z."""
    _, (c, r) = _computed("toeplitz_to_cauchy", c=c, r=r)
    for argument, given in (("c", c), ("r", r)):
        if given.dim() < 1 or given.shape[-1] != c.shape[-1]:
            expected = f"(…, {c.shape[-1]}) as c has" if c.dim() else "rank 1 or more"
            raise ValueError(f"toeplitz_to_cauchy: {argument}: expected {expected}, got {tuple(given.shape)}")
    c, r = torch.broadcast_tensors(c, r)
    n, working = c.shape[-1], torch.promote_types(c.dtype, torch.complex64)
    places = torch.arange(n, device=c.device)
    matrix = torch.cat([r[..., 1:].flip(-1), c], -1)[..., places[:, None] - places + max(n - 1, 0)].to(working)
    return torch.fft.ifft(torch.fft.fft(matrix, dim=-2), dim=-1) if n else matrix
