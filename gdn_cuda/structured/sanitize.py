"""Calls of every structured kernel at small sizes, for compute-sanitizer (tests/sanitize.py)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from .. import _C
from ..operators.measure import draw, sanitizes
from ..runtime import package as gdn_cuda

HALVES = (torch.bfloat16, torch.float16)
REALS = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
EPSILON = 1e-7  # relative rounding error that solvers assume


def with_gradients(function: Callable[..., Tensor], *given: Tensor | int) -> None:
    leaves = [x.requires_grad_() for x in given if isinstance(x, Tensor)]
    out = function(*given)
    torch.autograd.grad(out, leaves, torch.ones_like(out))


@sanitizes()
def cauchy() -> None:
    """Few and many points, one and two tiles of poles, four rows and one row per block."""
    for poles, (rows, points), dtype in product(
        (33, 70), ((4, 700), (3, 700), (12, 60000), (5, 60000)), (*REALS, *HALVES, *COMPLEX)
    ):
        v, z, w = draw(rows, poles, dtype=dtype), draw(points, dtype=dtype), draw(poles, dtype=dtype)
        gdn_cuda.cauchy_kernel(v, z, w)
        if dtype.is_complex:
            gdn_cuda.cauchy_conj(v, z, w)
            gdn_cuda.cauchy_conj(v, 1j * z.imag, w)  # S4's points
    on_a_pole = draw(8, dtype=torch.complex64)
    gdn_cuda.cauchy_conj(draw(8, dtype=torch.complex64), on_a_pole, on_a_pole)


@sanitizes()
def cauchy_batch() -> None:
    for dtype in (torch.float32, *HALVES):
        for rows, poles, points in ((16, 5, 3), (32, 257, 1030)):
            v = draw(rows, poles, dtype=dtype)
            gdn_cuda.cauchy_kernel(v, draw(points, dtype=dtype), draw(poles, dtype=dtype))
    v[0, 0] = 2.0**-20  # its rows are summed in fp64
    gdn_cuda.cauchy_kernel(v.float() * 2.0**-90, draw(points), draw(poles))


@sanitizes()
def cauchy_backward() -> None:
    for (rows, poles, points), dtype in product(((3, 7, 13), (4, 70, 2200), (40, 70, 13)), (*REALS, *HALVES, *COMPLEX)):
        shapes = (rows, poles), (points,), (poles,)
        with_gradients(gdn_cuda.cauchy_kernel, *(draw(*shape, dtype=dtype) for shape in shapes))
        if dtype.is_complex:
            v, z, w = (draw(*shape, dtype=dtype) for shape in shapes)
            with_gradients(gdn_cuda.cauchy_conj, v, z, w)
            with_gradients(gdn_cuda.cauchy_conj, v, torch.complex(torch.zeros_like(z.real), z.imag), w)  # on the axis
            with_gradients(gdn_cuda.cauchy_conj, v, torch.where(z.real > 1, 1e9 * z, z), w)  # some of large magnitude
            with_gradients(gdn_cuda.cauchy_conj, v, w[:1].repeat(z.shape), w)  # on a pole


def exponents(*shape: int, dtype: torch.dtype) -> Tensor:
    x = draw(*shape, dtype=dtype)
    return torch.complex(-0.01 * x.real.abs(), 40 * x.imag)


@sanitizes()
def vandermonde() -> None:
    for (rows, poles, steps), dtype in product(((1, 5, 7), (3, 33, 1500), (70, 3, 5000), (140, 5, 16000)), COMPLEX):
        gdn_cuda.log_vandermonde(draw(rows, poles, dtype=dtype), exponents(rows, poles, dtype=dtype), steps)


@sanitizes()
def vandermonde_moments() -> None:
    for (rows, poles, steps), dtype in product(((1, 5, 7), (3, 33, 20000), (140, 5, 3000), (140, 5, 16000)), COMPLEX):
        v, x = draw(rows, poles, dtype=dtype), exponents(rows, poles, dtype=dtype)
        with_gradients(gdn_cuda.log_vandermonde, v, x, steps)
        gdn_cuda.log_vandermonde_transpose(draw(rows, steps, dtype=v.real.dtype), v.detach(), x.detach(), steps)


def definite(n: int, dtype: torch.dtype) -> Tensor:
    distance = torch.arange(n, dtype=torch.float64, device="cuda")
    return (0.9**distance + 0.1 * (distance == 0)).to(dtype)


def multiply(systems: int, n: int, columns: int, dtype: torch.dtype) -> None:
    c, r, x = draw(systems, n, dtype=dtype), draw(systems, n, dtype=dtype), draw(systems, n, columns, dtype=dtype)
    gdn_cuda.toeplitz_matvec(c, r, x)
    gdn_cuda.toeplitz_matvec_transpose(c, r, x)


@sanitizes()
def toeplitz_sums() -> None:
    for n, dtype, columns in product((1, 2, 33, 64, 200), (*REALS, *COMPLEX), (1, 3)):
        multiply(2, n, columns, dtype)
    for dtype in REALS:  # long strips
        multiply(5, 129, 20, dtype)


@sanitizes()
def toeplitz_matvec() -> None:
    """Many systems, since toeplitz_sums would compute few."""
    for dtype in REALS:
        for systems, n in ((300, 240), (100, 900), (100, 2000), (20, 4000), (10, 8000)):
            multiply(systems, n, 1, dtype)
    for dtype in COMPLEX:
        for systems, n in ((1000, 100), (100, 400), (100, 900)):
            multiply(systems, n, 1, dtype)


@sanitizes()
def toeplitz_gko() -> None:
    for n, dtype, columns in product((1, 33, 65, 257), (*REALS, *COMPLEX), (1, 3)):
        c = draw(2, n, dtype=dtype)
        c[1] = 0  # singular
        torch.ops.gdn_cuda.toeplitz_gko(c, c * draw(2, n, dtype=dtype), draw(2, n, columns, dtype=dtype), EPSILON)


@sanitizes()
def toeplitz_generators() -> None:
    for dtype in (*REALS, *COMPLEX):
        c, r, b = draw(2, 700, dtype=dtype), draw(2, 700, dtype=dtype), draw(2, 700, 2, dtype=dtype)
        torch.ops.gdn_cuda.toeplitz_generators(c, r, b)


def eliminate(n: int, columns: int, configuration: int) -> None:
    left, right, b = (draw(2, rows, n, dtype=torch.complex128) for rows in (2, 2, columns))
    left[1] = 0
    torch.ops.gdn_cuda.toeplitz_eliminate(left, right, b, configuration)


@sanitizes()
def toeplitz_eliminate() -> None:
    count = next(len(each["configurations"]) for each in _C.kernels() if each["name"] == "toeplitz_eliminate")
    for configuration in range(count):
        eliminate(20, 3, configuration)  # all rows and columns in one block of a cluster
    eliminate(140, 2, 0)  # in two blocks


@sanitizes()
def toeplitz_schur() -> None:
    for n, dtype, columns in product((1, 33, 65, 257, 1025), REALS, (1, 4)):
        c = torch.stack([definite(n, dtype), -definite(n, dtype)])
        torch.ops.gdn_cuda.toeplitz_schur(c, draw(2, n, columns, dtype=dtype), EPSILON)


@sanitizes()
def toeplitz_pcg() -> None:
    for n, dtype in product((1100, 4096, 8191), REALS):
        c = torch.stack([definite(n, dtype), -definite(n, dtype)])
        torch.ops.gdn_cuda.toeplitz_pcg(c, draw(2, n, 2, dtype=dtype), EPSILON)
