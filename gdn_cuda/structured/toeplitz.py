"""The public functions of Toeplitz matrices; `gdn_cuda.structured` defines c, r and right-hand sides.

Integers alone become torch's default dtype; results of bfloat16 and float16 have that dtype again. Complex matrices are not
conjugated. Results are copied to `out`, so it may be memory of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..operators.explain import explain
from ..operators.gradients import needs_derivatives, require_no_transforms, under_transforms
from .call import as_they_are, broadcast_leading, call, check_out, computed, direct, finished
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


def toeplitz_matvec(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """The product with a Toeplitz matrix, as scipy.linalg.matmul_toeplitz.

    Formula:
        T x,  with T[i, j] = c[i − j] for i ≥ j, else r[j − i]

    Shapes:
        c: (…, n); r: (…, m); T is n × m
        x: (…, m) or (…, m, k)
        result: (…, n) or (…, n, k)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    If n ≠ m, a GPU multiplies by a square matrix of max(n, m) rows: the shorter of c and r is padded with zeros, which copies
    it and x or the result.

    Edge cases:
        r[0] is not read; empty sums are 0.

    Example:
        >>> c, r = torch.tensor([4.0, 1, 0]), torch.tensor([4.0, 2, 1])
        >>> gdn_cuda.toeplitz_matvec(c, r, torch.ones(3))
        tensor([7., 7., 5.])
    """
    if stream is None and out is None and as_they_are(c, r, x):
        return direct("toeplitz_matvec", ("c", "r", "x"), matvec, c, r, x, False)
    return _multiply("toeplitz_matvec", {"c": c, "r": r, "x": x}, False, stream, out)


def toeplitz_matvec_transpose(
    c: Tensor, r: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """The product with the transpose of a Toeplitz matrix.

    Formula:
        Tᵀ x,  with T[i, j] = c[i − j] for i ≥ j, else r[j − i]

    Shapes:
        c: (…, n); r: (…, m); T is n × m
        x: (…, n) or (…, n, k)
        result: (…, m) or (…, m, k)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Edge cases:
        As in `toeplitz_matvec`. A complex T is transposed, not conjugated.

    Example:
        >>> c, r = torch.tensor([4.0, 1, 0]), torch.tensor([4.0, 2, 1])
        >>> gdn_cuda.toeplitz_matvec_transpose(c, r, torch.ones(3))
        tensor([5., 7., 7.])
    """
    if stream is None and out is None and as_they_are(c, r, x):
        return direct("toeplitz_matvec_transpose", ("c", "r", "x"), matvec, c, r, x, True)
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
    """Solves Toeplitz systems with pivoting: `(x, info)`; does not raise for singular matrices and never waits for a GPU.

    Formula:
        x = T⁻¹ b,  with T[i, j] = c[i − j] for i ≥ j, else r[j − i]

    Shapes:
        c, r: (…, n)
        b, x: (…, n) or (…, n, k)
        info: (…), int32, one per matrix

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Edge cases:
        info, as of LAPACK's xGESVX, is 0; or k, 1 ≤ k ≤ n: pivot k is zero and the solution is NaN; or n + 1:
        1 / (‖T‖₁ ‖T⁻¹‖) is below the epsilon of the computation's precision, so possibly no digit of the solution is correct.

    Example:
        >>> c, r = torch.tensor([4.0, 1, 0]), torch.tensor([4.0, 2, 1])
        >>> gdn_cuda.toeplitz_solve_ex(c, r, torch.tensor([7.0, 7, 5]))
        (tensor([1., 1., 1.]), tensor(0, dtype=torch.int32))
    """
    if stream is None and as_they_are(c, r, b):
        return direct("toeplitz_solve_ex", ("c", "r", "b"), solve, c, r, b, False, False)
    return _call_for_two("toeplitz_solve_ex", stream, {"c": c, "r": r, "b": b}, lambda c, r, b: solve(c, r, b, False, False))


def toeplitz_solve_symmetric_ex(
    c: Tensor, b: Tensor, *, assume_positive: bool = False, stream: torch.cuda.Stream | None = None
) -> tuple[Tensor, Tensor]:
    """Solves symmetric Toeplitz systems, r = c: returns `(x, info)` as `toeplitz_solve_ex` does.

    Formula:
        x = T⁻¹ b,  with T[i, j] = c[|i − j|]

    Shapes:
        c: (…, n)
        b, x: (…, n) or (…, n, k)
        info: (…), int32, one per matrix

    Parameters:
        assume_positive: whether T is solved as a positive definite matrix; info tells where it is not
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    With `assume_positive` (real, at most 8192 rows on a GPU), one kernel for positive definite matrices solves the system,
    several times as fast.

    Edge cases:
        info as in `toeplitz_solve_ex`. With `assume_positive`, it is −k if the leading minor of order k is not positive, and
        the solution is NaN. Beyond 4096 rows it is −1 in that case, and if 60 steps of conjugate gradients are too few.

    Example:
        >>> x, info = gdn_cuda.toeplitz_solve_symmetric_ex(torch.tensor([2.0, 1, 0]), torch.tensor([3.0, 4, 3]))
        >>> x, info
        (tensor([1., 1., 1.]), tensor(0, dtype=torch.int32))
    """

    def run(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return solve_positive(c, b) if assume_positive else solve(c, c, b, True, False)

    if stream is None and as_they_are(c, b):
        return direct("toeplitz_solve_symmetric_ex", ("c", "b"), run, c, b)
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
    """Solves Toeplitz systems with pivoting.

    Formula:
        x = T⁻¹ b,  with T[i, j] = c[i − j] for i ≥ j, else r[j − i]

    Shapes:
        c, r: (…, n)
        b, x: (…, n) or (…, n, k)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Edge cases:
        Raises LinAlgError if a matrix is singular to working precision, for which it waits for a GPU: under graph
        capture and in compiled code call `toeplitz_solve_ex`.

    Example:
        >>> c, r = torch.tensor([4.0, 1, 0]), torch.tensor([4.0, 2, 1])
        >>> gdn_cuda.toeplitz_solve(c, r, torch.tensor([7.0, 7, 5]))
        tensor([1., 1., 1.])
    """
    if stream is None and out is None and as_they_are(c, r, b):
        x, info = direct("toeplitz_solve", ("c", "r", "b"), solve, c, r, b, False, True)
        _require_regular("toeplitz_solve", "c, r", info)
        return x
    return _solve_or_raise("toeplitz_solve", "c, r", {"c": c, "r": r, "b": b}, stream, out)


def toeplitz_solve_symmetric(
    c: Tensor, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """Solves symmetric Toeplitz systems, r = c. For a Hermitian matrix call `toeplitz_solve(c, c.conj(), b)`.

    Formula:
        x = T⁻¹ b,  with T[i, j] = c[|i − j|]

    Shapes:
        c: (…, n)
        b, x: (…, n) or (…, n, k)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Edge cases:
        Singular matrices as in `toeplitz_solve`; `toeplitz_solve_symmetric_ex` does not wait.

    Example:
        >>> gdn_cuda.toeplitz_solve_symmetric(torch.tensor([2.0, 1, 0]), torch.tensor([3.0, 4, 3]))
        tensor([1., 1., 1.])
    """
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


def explain_toeplitz_solve(n: int, symmetric: bool = False) -> str:
    """Which method solves a system of n rows in fp32 on this machine's GPU, or on an H200, and why. `gdn_cuda.explain` does so
    for any call."""
    c = torch.empty(n, device="meta")
    return explain(toeplitz_solve_symmetric, c, c) if symmetric else explain(toeplitz_solve, c, c, c)


def gs_compute_generators(c: Tensor, r: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
    """The first and the last column of the inverse of a Toeplitz matrix: `(u, v)`, for `toeplitz_inverse_apply`.

    Formula:
        u = T⁻¹ e_0,  v = T⁻¹ e_{n−1}

    Shapes:
        c, r, u, v: (…, n)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one

    Edge cases:
        Raises LinAlgError for singular matrices, so it waits for a GPU. u and v exist whenever T⁻¹ does, even if u[0] is
        zero.

    Example:
        >>> u, v = gdn_cuda.gs_compute_generators(torch.tensor([2.0, 0]), torch.tensor([2.0, 1]))
        >>> u, v  # the inverse is [[0.5, -0.25], [0, 0.5]]
        (tensor([0.5000, 0.0000]), tensor([-0.2500,  0.5000]))
    """

    def both(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        if needs_derivatives(c, r):
            check_vectors("gs_compute_generators", {"c": c, "r": r})
            x, info = solve(c, r, ends(c, r), False, True)
            u, v = x[..., 0], x[..., 1]
        else:
            u, v, info = generators.overload(c, r)
        _require_regular("gs_compute_generators", "c, r", info)
        return u, v

    tensors = {"c": c, "r": r}
    u, v = _call_for_two("gs_compute_generators", stream, tensors, both)
    return u, v.to(u.dtype)


def check_vectors(function: str, vectors: Mapping[str, Tensor]) -> torch.Size:
    """The broadcast leading dimensions of vectors (…,n), after a check that n is the same."""
    check_lengths(function, vectors)
    return broadcast_leading(function, {argument: (x, 1) for argument, x in vectors.items()})


def toeplitz_inverse_apply(
    gs_u: Tensor, gs_v: Tensor, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None
) -> Tensor:
    """The product with the inverse of a Toeplitz matrix, from the first and the last column of the inverse (Gohberg, Semencul).

    Formula:
        T⁻¹ x = (1/u_0) [ L(u) L(Jv)ᵀ − L(Sv) L(SJu)ᵀ ] x,  u = gs_u, v = gs_v
        L(·) is lower triangular Toeplitz, J reverses, S shifts down

    Shapes:
        gs_u, gs_v: (…, n), of `gs_compute_generators`
        x, result: (…, n) or (…, n, k)

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Edge cases:
        If u_0 is zero to working precision, |u_0| ≤ n ε max(|u|, |v|), the formula is undefined, though T⁻¹ may exist:
        LinAlgError for CPU tensors; NaN on a GPU, in compiled code and under torch.func, torch.vmap and forward mode.

    Example:
        >>> u, v = gdn_cuda.gs_compute_generators(torch.tensor([2.0, 0]), torch.tensor([2.0, 1]))
        >>> gdn_cuda.toeplitz_inverse_apply(u, v, torch.tensor([3.0, 2]))
        tensor([1., 1.])
    """
    function, tensors = "toeplitz_inverse_apply", {"gs_u": gs_u, "gs_v": gs_v, "x": x}

    def run(out: Tensor | None) -> Tensor:
        dtype, (u, v, right) = computed(function, tensors)
        if out is not None or right.device.type == "cpu":
            _check_out(function, out, solution_shape(function, {"gs_u": u, "gs_v": v}, "x", right, "generators"), dtype)
        epsilon = working_epsilon(
            *(y for y in (gs_u, gs_v) if y.is_floating_point() or y.is_complex())
        )  # a wider x does not make gs_u and gs_v more exact
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
    """A Toeplitz matrix in the basis in which it is Cauchy-like.

    Formula:
        F T F⁻¹,  F[j, k] = e^{−2πi jk/n} / √n
        Off the diagonal its entries are (ĝ_i·ĥ_j) / (ω_i − ω_j), ω_i = e^{−2πi i/n}, with the rank 2 generators of Z T − T Z.

    Shapes:
        c, r: (…, n)
        result: (…, n, n), complex

    Parameters:
        stream: the CUDA stream that computes, and on which the result is ready; None: the current one
        out: where the result is written, contiguous; None allocates it

    Edge cases:
        n = 0 gives an empty matrix. r[0] is not read.

    Example:
        >>> gdn_cuda.toeplitz_to_cauchy(torch.tensor([2.0, 1]), torch.tensor([2.0, 1])).real  # circulant: diagonal
        tensor([[3., 0.],
                [0., 1.]])
    """
    tensors = {"c": c, "r": r}

    def run(out: Tensor | None) -> Tensor:
        _, (column, row) = computed("toeplitz_to_cauchy", tensors)
        check_vectors("toeplitz_to_cauchy", tensors)
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
