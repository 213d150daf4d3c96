"""Toeplitz matrices: c (…,n) is the first column, r (…,n) the first row; c[0] wins, and r[0] is not read.

A right-hand side with more dimensions than c and r is (…,n,k), k of them; any other is (…,n). Only ranks decide: for a batch of
vectors under one matrix give c[None]. Leading dimensions broadcast. Dtypes meet as torch's promotion says; bfloat16 and float16
are computed in fp32, and results have them again. Complex matrices are not conjugated. Gradients flow to every input.

`stream` and `out` as in ops/structured.py; what `out` gets is copied there, so it may be memory of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..reference.structured_common import working_epsilon, zeros_of
from .call import as_one, broadcast_leading, call, check_out, finished
from .structured_toeplitz_registration import product
from .structured_toeplitz_solve import PCG_LONGEST, solve_positive, solve_symmetric
from .structured_toeplitz_solve import explain_toeplitz_solve as explain_toeplitz_solve

_ops = torch.ops.gdn_cuda


def computed(function: str, tensors: Mapping[str, Tensor]) -> tuple[torch.dtype, tuple[Tensor, ...]]:
    """The dtype they meet in, and each in the one that is computed with."""
    same = as_one(function, tensors)
    dtype = same[0].dtype
    return dtype, tuple(x.float() for x in same) if dtype in (torch.bfloat16, torch.float16) else same


def toeplitz_matvec(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T x."""
    return _multiply("toeplitz_matvec", {"c": c, "r": r, "x": x}, False, stream, out)


def toeplitz_matvec_transpose(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Tᵀ x."""
    return _multiply("toeplitz_matvec_transpose", {"c": c, "r": r, "x": x}, True, stream, out)


def _multiply(
    function: str, tensors: Mapping[str, Tensor], transpose: bool, stream: torch.cuda.Stream | None, out: Tensor | None
) -> Tensor:
    def run(out: Tensor | None) -> Tensor:
        dtype, given = computed(function, tensors)
        if out is not None:  # else the operator's own checks do
            check_out(function, out, _system_shape(function, tensors), dtype)
        return finished(product(given[0], given[1], given[2], transpose), dtype, out)

    return call(function, run, stream, out, tensors)


def toeplitz_solve_ex(c: Tensor, r: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for any T, with pivoting; nothing is raised, and nothing waits for a GPU.

    info has an int32 for every matrix, as LAPACK's xGESVX: 0; or k, 1 ≤ k ≤ n: pivot k is zero and the solution is NaN; or
    n + 1: 1 / (‖T‖₁ ‖T⁻¹‖) is below the epsilon of what is computed with, so no digit of the solution need be right.
    """
    return _with_info("toeplitz_solve_ex", {"c": c, "r": r, "b": b}, stream)


def toeplitz_solve_symmetric_ex(
    c: Tensor, b: Tensor, *, assume_positive: bool = False, stream: torch.cuda.Stream | None = None
) -> tuple[Tensor, Tensor]:
    """(T⁻¹ b, info) for r = c, as `toeplitz_solve_ex`.

    With `assume_positive` (real, at most 8192 rows) by one kernel for positive definite matrices, several times as fast; where
    one is not, info is −k, its leading minor of order k is not positive, and the solution NaN. Beyond 4096 rows info is −1
    there, and where 60 steps of conjugate gradients are not enough.
    """
    function, tensors = "toeplitz_solve_symmetric_ex", {"c": c, "b": b}

    def pair() -> tuple[Tensor, Tensor]:
        if not assume_positive:
            return _solved(function, tensors, None)
        dtype, (column, right) = computed(function, tensors)
        _system_shape(function, tensors)
        if column.is_complex() or column.shape[-1] > PCG_LONGEST:
            expected = f"real numbers and at most {PCG_LONGEST} rows with assume_positive"
            raise ValueError(f"{function}: c: expected {expected}, got {column.dtype} {tuple(column.shape)}")
        x, info = solve_positive(column, right)
        return x.to(dtype), info

    return _call_for_two(function, pair, stream, tensors)


def _solved(function: str, tensors: Mapping[str, Tensor], out: Tensor | None, waits: bool = False) -> tuple[Tensor, Tensor]:
    dtype, given = computed(function, tensors)
    symmetric = len(given) == 2
    arguments = (given[0], *given, True) if symmetric else (*given, False)
    check_out(function, out, _system_shape(function, tensors), dtype)
    if waits and symmetric and given[0].is_cuda and not given[0].is_complex():
        x, info = solve_symmetric(given[0], given[1])
    else:
        x, info = _ops.toeplitz_solve(*arguments)
    return finished(x, dtype, out), info


def _with_info(function: str, tensors: Mapping[str, Tensor], stream: torch.cuda.Stream | None) -> tuple[Tensor, Tensor]:
    def pair() -> tuple[Tensor, Tensor]:
        return _solved(function, tensors, None)

    return _call_for_two(function, pair, stream, tensors)


def _call_for_two(
    function: str, pair: Callable[[], tuple[Tensor, Tensor]], stream: torch.cuda.Stream | None, tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    if stream is None:
        return pair()
    second: list[Tensor] = []

    def run(_: Tensor | None) -> Tensor:
        one, other = pair()
        second.append(other)
        return one

    first = call(function, run, stream, None, tensors)
    second[0].record_stream(torch.cuda.current_stream(first.device))
    return first, second[0]


def _regular(function: str, arguments: str, info: Tensor) -> None:
    info = info.cpu()  # waits once
    if bool(info.any()):
        raise torch.linalg.LinAlgError(
            f"{function}: {arguments}: expected matrices that are nonsingular in working precision, got info {info.tolist()}"
        )


def toeplitz_solve(
    c: Tensor, r: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ b for any T; LinAlgError where one is singular to working precision. Waits for a GPU to know it: under graph capture
    and in compiled code, `toeplitz_solve_ex`."""
    return _solve_or_raise("toeplitz_solve", "c, r", {"c": c, "r": r, "b": b}, stream, out)


def toeplitz_solve_symmetric(
    c: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ b for r = c, so T = Tᵀ, as `toeplitz_solve`. A Hermitian matrix is `toeplitz_solve(c, c.conj(), b)`."""
    return _solve_or_raise("toeplitz_solve_symmetric", "c", {"c": c, "b": b}, stream, out)


def _solve_or_raise(
    function: str, arguments: str, tensors: Mapping[str, Tensor], stream: torch.cuda.Stream | None, out: Tensor | None
) -> Tensor:
    def run(out: Tensor | None) -> Tensor:
        x, info = _solved(function, tensors, out, waits=True)
        _regular(function, arguments, info)
        return x

    return call(function, run, stream, out, tensors)


def gs_compute_generators(c: Tensor, r: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
    """(u, v): the first and last column of T⁻¹, (…,n) each; LinAlgError for singular matrices, so it waits. They exist whenever
    T⁻¹ does, also where u[0] is zero."""
    tensors = {"c": c, "r": r}

    def pair() -> tuple[Tensor, Tensor]:
        dtype, (column, row) = computed("gs_compute_generators", tensors)
        leading = check_lines("gs_compute_generators", tensors)
        n = column.shape[-1]
        ends = torch.zeros(n, 2, dtype=column.dtype, device=column.device)
        if n:
            ends[0, 0] = ends[-1, 1] = 1
        x, info = _ops.toeplitz_solve(column, row, ends.expand(*leading, n, 2), False)
        _regular("gs_compute_generators", "c, r", info)
        return x[..., 0].to(dtype), x[..., 1].to(dtype)

    return _call_for_two("gs_compute_generators", pair, stream, tensors)


def check_lines(function: str, lines: Mapping[str, Tensor]) -> torch.Size:
    """(…,n) each, one n. The leading dimensions that they have together."""
    _check_lengths(function, lines)
    return broadcast_leading(function, {argument: (x, 1) for argument, x in lines.items()})


def _check_lengths(function: str, lines: Mapping[str, Tensor]) -> None:
    first, like = next(iter(lines.items()))
    for argument, x in lines.items():
        if x.dim() < 1:
            raise ValueError(f"{function}: {argument}: expected rank 1 or more, got ()")
        if x.shape[-1] != like.shape[-1]:
            raise ValueError(f"{function}: {argument}: expected (…, {like.shape[-1]}) as {first} has, got {tuple(x.shape)}")


def _system_shape(function: str, tensors: Mapping[str, Tensor], matrix: str = "matrix") -> tuple[int, ...]:
    """That of the result: the last of the tensors is (…,n) or (…,n,k), those before it are the lines of the matrix."""
    *lines, (argument, right) = tensors.items()
    _check_lengths(function, dict(lines))
    n, many = lines[0][1].shape[-1], right.dim() > max(x.dim() for _, x in lines)
    if right.dim() < 1 or right.shape[-2 if many else -1] != n:
        expected = f"(…, {n}), or with more dimensions than the {matrix} (…, {n}, k)"
        raise ValueError(f"{function}: {argument}: expected {expected}, got {tuple(right.shape)}")
    last = 2 if many else 1
    leading = broadcast_leading(function, {name: (x, 1) for name, x in lines} | {argument: (right, last)})
    return (*leading, *right.shape[-last:])


def toeplitz_inverse_apply(
    gs_u: Tensor, gs_v: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """T⁻¹ x = (1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x from the first and last column of T⁻¹ (Gohberg, Semencul); L(·) lower
    triangular Toeplitz, J reversal, S shift down.

    Where u_0 is zero to working precision, |u_0| ≤ n ε max(|u|, |v|), the formula does not exist, though T⁻¹ may: LinAlgError
    for CPU tensors, NaN on a GPU and in compiled code.
    """
    function, tensors = "toeplitz_inverse_apply", {"gs_u": gs_u, "gs_v": gs_v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        dtype, (u, v, right) = computed(function, tensors)
        check_out(function, out, _system_shape(function, tensors, "generators"), dtype)
        n, many = u.shape[-1], right.dim() > max(u.dim(), v.dim())
        u, v = torch.broadcast_tensors(u, v)
        epsilon = working_epsilon(gs_u, gs_v)  # theirs: a wider x does not make them more exact
        return finished(_inverse_product(u, v, right, many, epsilon) if n else product(u, v, right, False), dtype, out)

    return call(function, run, stream, out, tensors)


def _inverse_product(u: Tensor, v: Tensor, x: Tensor, many: bool, epsilon: float) -> Tensor:
    largest = torch.maximum(u.detach().abs().amax(-1), v.detach().abs().amax(-1))
    regular = u.detach()[..., 0].abs() > u.shape[-1] * epsilon * largest
    if not torch.compiler.is_compiling() and u.device.type == "cpu" and not bool(regular.all()):
        raise torch.linalg.LinAlgError(
            "toeplitz_inverse_apply: gs_u: expected u[0] that is not zero in working precision, got "
            f"{u[..., 0].tolist()}: the leading minor of order n - 1 is singular; toeplitz_solve does not need it"
        )

    def lower(first: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
        return product(first, torch.zeros_like(first), x, transpose)

    def shifted(first: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(first[..., :1]), first[..., :-1]], -1)

    applied = lower(u, lower(v.flip(-1), x, True)) - lower(shifted(v), lower(shifted(u.flip(-1)), x, True))
    divisor = torch.where(regular, u[..., 0], torch.nan)[..., None]
    return applied / (divisor[..., None] if many else divisor)


def toeplitz_to_cauchy(c: Tensor, r: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
    """F T F⁻¹ (…,n,n), complex; F[j,k] = e^{−2πi jk/n} / √n. Off the diagonal its entries are (ĝ_i·ĥ_j) / (ω_i − ω_j) with
    ω_i = e^{−2πi i/n} and generators of rank 2, those of Z T − T Z."""
    tensors = {"c": c, "r": r}

    def run(out: Tensor | None) -> Tensor:
        _, (column, row) = computed("toeplitz_to_cauchy", tensors)
        check_lines("toeplitz_to_cauchy", tensors)
        column, row = torch.broadcast_tensors(column, row)
        n, working = column.shape[-1], torch.promote_types(column.dtype, torch.complex64)
        check_out("toeplitz_to_cauchy", out, (*column.shape, n), working)
        if 0 in column.shape:
            return finished(zeros_of((*column.shape, n), column, row), working, out)
        places = torch.arange(n, device=column.device)
        diagonals = torch.cat([row[..., 1:].flip(-1), column], -1)
        matrix = diagonals[..., places[:, None] - places + n - 1].to(working)
        return finished(torch.fft.ifft(torch.fft.fft(matrix, dim=-2), dim=-1), working, out)

    return call("toeplitz_to_cauchy", run, stream, out, tensors)
