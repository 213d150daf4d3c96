"""The Toeplitz operators: systems × rows, one right-hand side each in fp32, and the same in plain torch, forming the matrix.

Solvers that raise wait for the device and cannot be captured: those rows are timed call by call ("eager"), as are all peers of
solvers. "graph" rows replay the functions that do not wait, `toeplitz_solve_ex` and, for symmetric matrices,
`toeplitz_solve_symmetric_ex` with assume_positive. Backward rows time the gradients of matrix and right-hand side.

Symmetric matrices are exponential covariances, for which conjugate gradients converge in six steps. At lengths at which
conjugate gradients are tried, there are also smooth covariances with a noise of 1e-3, with a condition number of 2e5, for which
the limit of sixty steps does not suffice ("steps do not end").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..operators.measure import Absent, Case, Inputs, Peer, Work, bench, import_peer
from .measure_sums import Function, in_torch, work_of

Shapes = tuple[tuple[int, int], ...]  # systems and rows
GPU_PRODUCTS: Shapes = ((4, 256), (64, 1024))
GPU_SYMMETRIC: Shapes = ((4, 64), (4, 256), (64, 1024), (1, 2048), (1, 8192))
GPU_GENERAL: Shapes = ((4, 256), (64, 1024), (1, 8192))
CPU_SHAPES: Shapes = ((2, 64),)
SHORTEST_BY_GRADIENTS = 1025
# Longer systems are solved by libraries that wait for the device.
LONGEST_CAPTURED = {
    "toeplitz_solve": _C.TOEPLITZ_LONGEST_GENERAL,
    "toeplitz_solve_symmetric": _C.TOEPLITZ_LONGEST_POSITIVE,
}


def _solves(name: str, device: str, shapes: Shapes) -> Iterator[Case]:
    for systems, n in shapes if device == "cuda" else CPU_SHAPES:
        can_be_captured = n <= LONGEST_CAPTURED[name]
        for timed, backward in product(("eager", "graph") if can_be_captured else ("eager",), (False, True)):
            yield _solve(name, device, systems, n, timed, backward)
        if name == "toeplitz_solve_symmetric" and n >= SHORTEST_BY_GRADIENTS:
            for backward in (False, True):
                yield _solve(name, device, systems, n, "eager", backward, is_hard=True)


def _solve(name: str, device: str, systems: int, n: int, timed: str, backward: bool, is_hard: bool = False) -> Case:
    shape = f"{systems}×{n} {timed}" + ", steps do not end" * is_hard + ", backward" * backward
    work = partial(_work, name, device, systems, n, timed == "graph", backward, is_hard)
    return Case(shape, work, captured=timed == "graph")


def _work(
    name: str, device: str, systems: int, n: int, without_waiting: bool = False, backward: bool = False, is_hard: bool = False
) -> Work:
    from ..runtime import package as gdn_cuda

    distance = torch.arange(n, device=device, dtype=torch.float32)
    positive = (0.9**distance + 0.1 * (distance == 0)).repeat(systems, 1)
    smooth = torch.exp(-((distance / 100) ** 2)) + 1e-3 * (distance == 0)
    c, r, right = (torch.randn(systems, n, device=device) for _ in range(3))
    c[:, 0] += 4 * n**0.5  # a condition number of a few
    if name == "toeplitz_matvec":
        return work_of(gdn_cuda.toeplitz_matvec, {"c": c, "r": r, "x": right}, ("c", "r", "x"), backward)
    if name == "toeplitz_solve":
        solve = _first_of_ex if without_waiting else gdn_cuda.toeplitz_solve
        return work_of(solve, {"c": c, "r": r, "b": right}, ("c", "r", "b"), backward)
    symmetric = _first_of_symmetric_ex if without_waiting else gdn_cuda.toeplitz_solve_symmetric
    x = {"c": smooth.repeat(systems, 1) if is_hard else positive, "b": right}
    # Peers solve in fp32, which leaves few digits of a hard system.
    return work_of(symmetric, x, ("c", "b"), backward, checked={"c": positive})


def _first_of_ex(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    from ..runtime import package as gdn_cuda

    return gdn_cuda.toeplitz_solve_ex(c, r, b)[0]


def _first_of_symmetric_ex(c: Tensor, b: Tensor) -> Tensor:
    from ..runtime import package as gdn_cuda

    return gdn_cuda.toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[0]


# ---- In plain torch


def _formed(c: Tensor, r: Tensor) -> Tensor:
    n = c.shape[-1]
    places = torch.arange(n, device=c.device)
    return torch.cat([r[..., 1:].flip(-1), c], -1)[..., places[:, None] - places + (n - 1)]


def transforms(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    n = c.shape[-1]
    diagonals = torch.cat([c, torch.zeros_like(c[..., :1]), r[..., 1:].flip(-1)], -1)
    return torch.fft.irfft(torch.fft.rfft(diagonals) * torch.fft.rfft(x, 2 * n), 2 * n)[..., :n]


def cholesky(c: Tensor, b: Tensor) -> Tensor:
    """Does not read info, so it does not wait."""
    factor = torch.linalg.cholesky_ex(_formed(c, c)).L
    return torch.cholesky_solve(b[..., None], factor).squeeze(-1)


def lu(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    factor, pivots, _ = torch.linalg.lu_factor_ex(_formed(c, r))
    return torch.linalg.lu_solve(factor, pivots, b[..., None]).squeeze(-1)


def _in_torch_eagerly(function: Function, x: Inputs) -> Peer:
    return dataclasses.replace(in_torch(function, x), captured=False)


# ---- SciPy: Levinson's recursion and transforms on the CPU, one system after another; no gradients


def _scipy(name: str, x: Inputs) -> Peer:
    if x["backward"]:
        raise Absent("it has no gradients")
    function = import_peer("scipy.linalg", name)
    device, right = x["c"].device, "x" if "x" in x else "b"
    columns, rhs = x["c"].cpu().numpy(), x[right].cpu().numpy()
    rows = x["r"].cpu().numpy() if "r" in x else columns

    def call() -> Any:
        return [function((c, r), b) for c, r, b in zip(columns, rows, rhs, strict=True)]

    return Peer(call, lambda found: (torch.stack([torch.from_numpy(one) for one in found]).to(device), None), on_host=True)


# ---- The rows


@bench({"torch FFT": partial(in_torch, transforms), "SciPy": partial(_scipy, "matmul_toeplitz")}, "gradients")
def toeplitz_matvec(device: str) -> Iterator[Case]:
    for systems, n in GPU_PRODUCTS if device == "cuda" else CPU_SHAPES:
        yield Case(f"{systems}×{n}", partial(_work, "toeplitz_matvec", device, systems, n))
        yield Case(f"{systems}×{n}, backward", partial(_work, "toeplitz_matvec", device, systems, n, backward=True))


@bench({"torch LU": partial(_in_torch_eagerly, lu), "SciPy": partial(_scipy, "solve_toeplitz")}, "gradients")
def toeplitz_solve(device: str) -> Iterator[Case]:
    return _solves("toeplitz_solve", device, GPU_GENERAL)


@bench({"torch Cholesky": partial(_in_torch_eagerly, cholesky), "SciPy": partial(_scipy, "solve_toeplitz")}, "gradients")
def toeplitz_solve_symmetric(device: str) -> Iterator[Case]:
    return _solves("toeplitz_solve_symmetric", device, GPU_SYMMETRIC)
