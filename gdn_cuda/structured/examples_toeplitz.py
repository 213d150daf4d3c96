"""Examples of Toeplitz matrices. T is the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..operators.examples import Arguments, Case, call_operator, draw
from ..runtime import package as gdn_cuda
from .examples_sums import Make


def system(dtype: torch.dtype, right: str, columns: int | None) -> Make:
    def make(B: int, T: int, seed: int) -> Arguments:
        c = draw(2, B, 2 * T, seed=seed, dtype=dtype)[..., ::2].clone()
        c[..., :1] += 2 * T
        tail = (T,) if columns is None else (T, columns)
        return {"c": c, "r": draw(B, T, seed=seed + 1, dtype=dtype), right: draw(2, 1, *tail, seed=seed + 2, dtype=dtype)}

    return make


def symmetric(dtype: torch.dtype, **more: Any) -> Make:
    def make(B: int, T: int, seed: int) -> Arguments:
        x = system(dtype, "b", 2)(B, T, seed)
        return {"c": x["c"], "b": x["b"]} | more

    return make


def regular(B: int, T: int, seed: int) -> Arguments:
    """Matrices whose inverses have columns with a first entry that is not zero."""
    x = system(torch.float32, "x", 2)(B, T, seed)
    return {"c": x["c"] + 3 * (torch.arange(T) == 0), "r": x["r"]}


def columns_of_inverse(B: int, T: int, seed: int) -> Arguments:
    x = regular(B, T, seed)
    return {"gs_u": x["c"], "gs_v": x["r"], "x": system(torch.float32, "x", 2)(B, T, seed)["x"], "epsilon": 1e-7}


def general(B: int, T: int, seed: int) -> Arguments:
    return system(torch.complex64, "b", 2)(B, T, seed) | {"epsilon": 1e-7}


def elimination(B: int, T: int, seed: int) -> Arguments:
    """Generators and right-hand sides."""
    shapes = {"left": (B, 2, T), "right": (B, 2, T), "rhs": (B, 3, T)}
    drawn = {name: draw(*shape, seed=seed + i, dtype=torch.complex128) for i, (name, shape) in enumerate(shapes.items())}
    return drawn | {"configuration": -1}


def cases() -> Iterator[Case]:
    for dtype, columns in ((torch.float64, 3), (torch.bfloat16, None), (torch.complex64, None)):
        name = str(dtype).removeprefix("torch.")
        yield Case(f"toeplitz-{name}", gdn_cuda.toeplitz_matvec, system(dtype, "x", columns))
        yield Case(f"toeplitz-transpose-{name}", gdn_cuda.toeplitz_matvec_transpose, system(dtype, "x", columns))
        yield Case(f"toeplitz-solve-{name}", gdn_cuda.toeplitz_solve_ex, system(dtype, "b", columns))
    yield Case("toeplitz-inverse", call_operator("toeplitz_inverse_apply"), columns_of_inverse)
    yield Case("toeplitz-symmetric", gdn_cuda.toeplitz_solve_symmetric_ex, symmetric(torch.float32))
    yield Case("toeplitz-schur", call_operator("toeplitz_schur"), symmetric(torch.float32, epsilon=1e-7))
    yield Case("toeplitz-pcg", call_operator("toeplitz_pcg"), symmetric(torch.float64, epsilon=1e-15))
    yield Case("toeplitz-positive", call_operator("toeplitz_solve_positive"), symmetric(torch.float64))
    yield Case("toeplitz-ends", call_operator("gs_compute_generators"), regular)
    yield Case("toeplitz-gko", call_operator("toeplitz_gko"), general)
    yield Case("toeplitz-generators", call_operator("toeplitz_generators"), system(torch.complex64, "b", 2))
    yield Case("toeplitz-eliminate", call_operator("toeplitz_eliminate"), elimination)
