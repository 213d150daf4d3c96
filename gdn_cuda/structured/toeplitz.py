"""Toeplitz matrices: c is the first column, r the first row; c[0] wins, and r[0] is not read.

A right-hand side with more dimensions than c and r is (…,n,k), k of them; any other is (…,n). Only ranks decide: for a batch of
vectors under one matrix give c[None]. Leading dimensions broadcast. Dtypes meet as torch's promotion says, and integers alone
are torch's default dtype; bfloat16 and float16 are computed in fp32, and results have them again. Complex matrices are not
conjugated. Gradients flow to every input; forward mode, torch.func and torch.vmap work.

`stream` and `out` as in gdn_cuda/structured/__init__.py; what `out` gets is copied there, so it may be memory of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .. import _C
from ..operators.gradients import needs_derivatives, require_no_transforms, under_transforms
from .call import as_they_are, broadcast_leading, call, check_out, computed, finished
from .reference_common import working_epsilon, zeros_of
from .toeplitz_operators import (
    check_lengths,
    ends,
    generators,
    inverse_apply,
    inverse_product,
    is_regular,
    matvec,
    product_shape,
    solution_shape,
    solve,
    solve_positive,
)

explain_toeplitz_solve = _C.explain_toeplitz_solve  # (n, symmetric=False): which way systems take on a GPU, and why


def toeplitz_matvec(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T x; c (…,n), r (…,m), x (…,m) or (…,m,k), the result (…,n) or (…,n,k). As scipy.linalg.matmul_toeplitz.

    Where n ≠ m, the kernels of a GPU multiply with a square matrix of max(n, m) rows: zeros complete what is shorter, which
    takes a copy of it and of x or the result.
    """
    if stream is None and out is None and as_they_are(c, r, x):
        return matvec(c, r, x, False)
    return _multiply("toeplitz_matvec", {"c": c, "r": r, "x": x}, False, stream, out)


def toeplitz_matvec_transpose(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Tᵀ x; c (…,n), r (…,m), x (…,n) or (…,n,k), the result (…,m) or (…,m,k); otherwise as `toeplitz_matvec`."""
    if stream is None and out is None and as_they_are(c, r, x):
        return matvec(c, r, x, True)
    return _multiply("toeplitz_matvec_transpose", {"c": c, "r": r, "x": x}, True, stream, out)


def _multiply(
    function: str, tensors: Mapping[str, Tensor], transpose: bool, stream: torch.cuda.Stream | None, out: Tensor | None
) -> Tensor:
    def run(out: Tensor | None) -> Tensor:
        dtype, given = computed(function, tensors)
        if out is not None:  # otherwise the operator checks
            _check_out(function, out, product_shape(function, given[0], given[1], given[2], transpose), dtype)
        return finished(matvec(*given, transpose), dtype, out)

    return call(function, run, stream, out, tensors)


def _check_out(function: str, out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check_out(function, out, shape, dtype)
    if out is not None:
        require_no_transforms(function)


def toeplitz_solve_ex(c: Tensor, r: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for any T, c and r (…,n), with pivoting; nothing is raised, and nothing waits for a GPU.

    info has an int32 for every matrix, as LAPACK's xGESVX: 0; or k, 1 ≤ k ≤ n: pivot k is zero and the solution is NaN; or
    n + 1: 1 / (‖T‖₁ ‖T⁻¹‖) is below the epsilon of what is computed with, so no digit of the solution need be right.
    """
    if stream is None and as_they_are(c, r, b):
        return solve(c, r, b, False, False)
    return _call_for_two("toeplitz_solve_ex", stream, {"c": c, "r": r, "b": b}, lambda c, r, b: solve(c, r, b, False, False))


def toeplitz_solve_symmetric_ex(
    c: Tensor, b: Tensor, *, assume_positive: bool = False, stream: torch.cuda.Stream | None = None
) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for r = c, as `toeplitz_solve_ex`.

    With `assume_positive` (real, at most 8192 rows on a GPU) by one kernel for positive definite matrices, several times as
    fast; where one is not, info is −k, its leading minor of order k is not positive, and the solution NaN. Beyond 4096 rows
    info is −1 there, and where 60 steps of conjugate gradients are not enough.
    """

    def run(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return solve_positive(c, b) if assume_positive else solve(c, c, b, True, False)

    if stream is None and as_they_are(c, b):
        return run(c, b)
    return _call_for_two("toeplitz_solve_symmetric_ex", stream, {"c": c, "b": b}, run)


def _call_for_two(
    function: str,
    stream: torch.cuda.Stream | None,
    tensors: Mapping[str, Tensor],
    solved: Callable[..., tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Calls `solved` in the dtype of the computation; its second result is returned unchanged."""
    second: list[Tensor] = []

    def run(_: Tensor | None) -> Tensor:
        dtype, given = computed(function, tensors)
        one, other = solved(*given)
        second.append(other)
        return one.to(dtype)

    first = call(function, run, stream, None, tensors)
    if stream is not None and second[0].is_cuda:
        second[0].record_stream(torch.cuda.current_stream(first.device))
    return first, second[0]


def _require_regular(function: str, arguments: str, info: Tensor) -> None:
    """info is on the CPU: the operator has waited."""
    if bool(info.any()):
        raise torch.linalg.LinAlgError(
            f"{function}: {arguments}: expected matrices that are nonsingular in working precision, got info {info.tolist()}"
        )


def toeplitz_solve(
    c: Tensor, r: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ b for any T; LinAlgError where one is singular to working precision. Waits for a GPU to know it: under graph capture
    and in compiled code, `toeplitz_solve_ex`."""
    if stream is None and out is None and as_they_are(c, r, b):
        x, info = solve(c, r, b, False, True)
        _require_regular("toeplitz_solve", "c, r", info)
        return x
    return _solve_or_raise("toeplitz_solve", "c, r", {"c": c, "r": r, "b": b}, stream, out)


def toeplitz_solve_symmetric(
    c: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ b for r = c, so T = Tᵀ, as `toeplitz_solve`. A Hermitian matrix is `toeplitz_solve(c, c.conj(), b)`."""
    return _solve_or_raise("toeplitz_solve_symmetric", "c", {"c": c, "b": b}, stream, out)


def _solve_or_raise(
    function: str, arguments: str, tensors: Mapping[str, Tensor], stream: torch.cuda.Stream | None, out: Tensor | None
) -> Tensor:
    symmetric = len(tensors) == 2

    def run(out: Tensor | None) -> Tensor:
        dtype, (c, *rest) = computed(function, tensors)
        row, b = (c, *rest) if symmetric else rest
        if out is not None:
            _check_out(function, out, solution_shape(function, {"c": c, "r": row}, "b", b), dtype)
        x, info = solve(c, row, b, symmetric, True)
        _require_regular(function, arguments, info)
        return finished(x, dtype, out)

    return call(function, run, stream, out, tensors)


def gs_compute_generators(c: Tensor, r: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
    """(u, v): the first and last column of T⁻¹, (…,n) each; LinAlgError for singular matrices, so it waits. They exist whenever
    T⁻¹ does, also where u[0] is zero."""

    def both(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if needs_derivatives(c, r):
            check_lines("gs_compute_generators", {"c": c, "r": r})
            x, info = solve(c, r, ends(c, r), False, True)
            u, v = x[..., 0], x[..., 1]
        else:
            u, v, info = generators.overload(c, r)
        _require_regular("gs_compute_generators", "c, r", info)
        return u, v

    tensors = {"c": c, "r": r}
    u, v = _call_for_two("gs_compute_generators", stream, tensors, both)
    return u, v.to(u.dtype)


def check_lines(function: str, lines: Mapping[str, Tensor]) -> torch.Size:
    """(…,n) each, one n. The leading dimensions that they have together."""
    check_lengths(function, lines)
    return broadcast_leading(function, {argument: (x, 1) for argument, x in lines.items()})


def toeplitz_inverse_apply(
    gs_u: Tensor, gs_v: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ x = (1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x from the first and last column of T⁻¹ (Gohberg, Semencul); L(·) lower
    triangular Toeplitz, J reversal, S shift down.

    Where u_0 is zero to working precision, |u_0| ≤ n ε max(|u|, |v|), the formula does not exist, though T⁻¹ may: LinAlgError
    for CPU tensors, NaN on a GPU, in compiled code and under torch.func, torch.vmap and forward mode.
    """
    function, tensors = "toeplitz_inverse_apply", {"gs_u": gs_u, "gs_v": gs_v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        dtype, (u, v, right) = computed(function, tensors)
        if out is not None or right.device.type == "cpu":
            _check_out(function, out, solution_shape(function, {"gs_u": u, "gs_v": v}, "x", right, "generators"), dtype)
        epsilon = working_epsilon(
            *(y for y in (gs_u, gs_v) if y.is_floating_point() or y.is_complex())
        )  # a wider x does not make them more exact
        if right.device.type == "cpu":
            _require_first_entry(u, v, epsilon)
        apply = inverse_product if needs_derivatives(u, v, right) else inverse_apply.overload
        return finished(apply(u, v, right, epsilon), dtype, out)

    return call(function, run, stream, out, tensors)


def _require_first_entry(u: Tensor, v: Tensor, epsilon: float) -> None:
    if torch.compiler.is_compiling() or under_transforms() or u.shape[-1] == 0:
        return
    if not bool(is_regular(u, v, epsilon).all()):
        raise torch.linalg.LinAlgError(
            "toeplitz_inverse_apply: gs_u: expected u[0] that is not zero in working precision, got "
            f"{u[..., 0].tolist()}: the leading minor of order n - 1 is singular; toeplitz_solve does not need it"
        )


def toeplitz_to_cauchy(c: Tensor, r: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
    """F T F⁻¹ (…,n,n), complex; F[j,k] = e^{−2πi jk/n} / √n. Off the diagonal its entries are (ĝ_i·ĥ_j) / (ω_i − ω_j) with
    ω_i = e^{−2πi i/n} and generators of rank 2, those of Z T − T Z."""
    tensors = {"c": c, "r": r}

    def run(out: Tensor | None) -> Tensor:
        _, (column, row) = computed("toeplitz_to_cauchy", tensors)
        check_lines("toeplitz_to_cauchy", tensors)
        column, row = torch.broadcast_tensors(column, row)
        n, working = column.shape[-1], torch.promote_types(column.dtype, torch.complex64)
        _check_out("toeplitz_to_cauchy", out, (*column.shape, n), working)
        if 0 in column.shape:
            return finished(zeros_of((*column.shape, n), column, row), working, out)
        places = torch.arange(n, device=column.device)
        diagonals = torch.cat([row[..., 1:].flip(-1), column], -1)
        matrix = diagonals[..., places[:, None] - places + n - 1].to(working)
        return finished(torch.fft.ifft(torch.fft.fft(matrix, dim=-2), dim=-1), working, out)

    return call("toeplitz_to_cauchy", run, stream, out, tensors)
