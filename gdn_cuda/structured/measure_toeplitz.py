"""The Toeplitz operators: systems × rows, one right-hand side each in fp32, and the same in plain torch, forming the matrix.

Solvers that raise wait for the device and cannot be captured: those rows are timed call by call ("eager"), as are all peers of
solvers; beside them "graph" is the replay of what waits for nothing, `toeplitz_solve_ex`, and for symmetric matrices
`toeplitz_solve_symmetric_ex` with assume_positive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..operators.measure import Case, Inputs, Peer, Work, bench, import_peer
from .measure_sums import Function, in_torch, work_of

GPU_PRODUCTS = ((4, 256), (64, 1024))
GPU_SYMMETRIC = ((4, 64), (4, 256), (64, 1024), (1, 8192))
GPU_GENERAL = ((4, 256), (64, 1024), (1, 8192))
CPU_SHAPES = ((2, 64),)
# Longer systems are solved by libraries that wait for the device.
LONGEST_CAPTURED = {
    "toeplitz_solve": _C.TOEPLITZ_LONGEST_GENERAL,
    "toeplitz_solve_symmetric": _C.TOEPLITZ_LONGEST_POSITIVE,
}


def _solves(name: str, device: str, shapes: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    for systems, n in shapes if device == "cuda" else CPU_SHAPES:
        yield Case(f"{systems}×{n} eager", partial(_work, name, device, systems, n, False), captured=False)
        if n <= LONGEST_CAPTURED[name]:
            yield Case(f"{systems}×{n} graph", partial(_work, name, device, systems, n, True))


def _work(name: str, device: str, systems: int, n: int, without_waiting: bool) -> Work:
    import gdn_cuda

    distance = torch.arange(n, device=device, dtype=torch.float32)
    positive = 0.9**distance + 0.1 * (distance == 0)
    c, r, right = (torch.randn(systems, n, device=device) for _ in range(3))
    c[:, 0] += 4 * n**0.5  # a condition number of a few
    if name == "toeplitz_matvec":
        return work_of(gdn_cuda.toeplitz_matvec, {"c": c, "r": r, "x": right}, ("c", "r", "x"), False)
    if name == "toeplitz_solve":
        solve = _first_of_ex if without_waiting else gdn_cuda.toeplitz_solve
        return work_of(solve, {"c": c, "r": r, "b": right}, ("c", "r", "b"), False)
    symmetric = _first_of_symmetric_ex if without_waiting else gdn_cuda.toeplitz_solve_symmetric
    return work_of(symmetric, {"c": positive.repeat(systems, 1), "b": right}, ("c", "b"), False)


def _first_of_ex(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    import gdn_cuda

    return gdn_cuda.toeplitz_solve_ex(c, r, b)[0]


def _first_of_symmetric_ex(c: Tensor, b: Tensor) -> Tensor:
    import gdn_cuda

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
    """Does not read info, so that nothing waits."""
    factor = torch.linalg.cholesky_ex(_formed(c, c)).L
    return torch.cholesky_solve(b[..., None], factor).squeeze(-1)


def lu(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    factor, pivots, _ = torch.linalg.lu_factor_ex(_formed(c, r))
    return torch.linalg.lu_solve(factor, pivots, b[..., None]).squeeze(-1)


def _in_torch_eagerly(function: Function, x: Inputs) -> Peer:
    return dataclasses.replace(in_torch(function, x), captured=False)


# ---- SciPy: Levinson's recursion and transforms on the CPU, one system after another; no gradients


def _scipy(name: str, x: Inputs) -> Peer:
    function = import_peer("scipy.linalg", name)
    device, right = x["c"].device, "x" if "x" in x else "b"
    columns, numbers = x["c"].cpu().numpy(), x[right].cpu().numpy()
    rows = x["r"].cpu().numpy() if "r" in x else columns

    def call() -> Any:
        return [function((c, r), b) for c, r, b in zip(columns, rows, numbers, strict=True)]

    return Peer(call, lambda found: (torch.stack([torch.from_numpy(one) for one in found]).to(device), None), on_host=True)


# ---- The rows


@bench({"torch FFT": partial(in_torch, transforms), "SciPy": partial(_scipy, "matmul_toeplitz")}, "gradients")
def toeplitz_matvec(device: str) -> Iterator[Case]:
    for systems, n in GPU_PRODUCTS if device == "cuda" else CPU_SHAPES:
        yield Case(f"{systems}×{n}", partial(_work, "toeplitz_matvec", device, systems, n, False))


@bench({"torch LU": partial(_in_torch_eagerly, lu), "SciPy": partial(_scipy, "solve_toeplitz")}, "gradients")
def toeplitz_solve(device: str) -> Iterator[Case]:
    return _solves("toeplitz_solve", device, GPU_GENERAL)


@bench({"torch Cholesky": partial(_in_torch_eagerly, cholesky), "SciPy": partial(_scipy, "solve_toeplitz")}, "gradients")
def toeplitz_solve_symmetric(device: str) -> Iterator[Case]:
    return _solves("toeplitz_solve_symmetric", device, GPU_SYMMETRIC)
