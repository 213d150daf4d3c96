"""Tunable operators of structured matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operators.measure import tunable
from ..operators.tunable import Shape, Tunable


@dataclass(frozen=True)
class Sums(Shape):
    rows: int = 1024
    poles: int = 32
    points: int = 16384


# Twice the allowed error (relative RMS) of a result, since both compared results may have it: the documented error for fp32,
# one rounding for narrower dtypes. Wrong indices cause far larger errors.
CAUCHY_TOLERANCE = {"f32": 2e-6, "c64": 2e-6, "f64": 1e-12, "c128": 1e-12, "bf16": 2**-8, "f16": 2**-10}
POWERS_TOLERANCE = {"c64": 2e-5, "c128": 1e-12}


# ---- Cauchy sums: v (rows, poles), points (points), poles (rows, poles) or (poles)


def _cauchy_problem(conj: bool) -> Callable[[Sums, str, bool], str]:
    def problem(shape: Sums, dtype: str, shared: bool) -> str:
        return (
            f"{{.rows = {shape.rows}, .shared_rows = {shape.rows if shared else 1}, .points = {shape.points}, "
            f".poles = {shape.poles}, .io = DType::{dtype}, .conj = {str(conj).lower()}}}"
        )

    return problem


def _separated(shape: Sums, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    """Points to the right and poles to the left, without cancellation, so that results can be compared."""
    real = torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype

    def draw(*size: int, sign: int) -> Tensor:
        part = sign * (1 + torch.rand(*size, device=device, dtype=torch.float64)).to(real)
        return torch.complex(part, 0.5 * torch.rand_like(part)) if dtype.is_complex else part

    pole_shape = (shape.poles,) if shared else (shape.rows, shape.poles)
    return {
        "v": draw(shape.rows, shape.poles, sign=1),
        "omega": draw(shape.points, sign=1),
        "lambd": draw(*pole_shape, sign=-1),
    }


def _s4(shape: Sums, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    """Points on the imaginary axis, poles of S4's initialisation."""
    theta = math.pi * torch.arange(shape.points, dtype=torch.float64, device=device) / shape.points
    z = torch.complex(torch.zeros_like(theta), 2 * torch.tan(0.5 * theta))
    v = torch.randn(shape.rows, shape.poles, device=device, dtype=torch.complex128)
    return {"v": v.to(dtype), "z": z.to(dtype), "w": _poles(shape, shared, device).to(dtype)}


def _poles(shape: Sums, shared: bool, device: str) -> Tensor:
    imaginary = math.pi * torch.arange(shape.poles, device=device, dtype=torch.float64)
    one = torch.complex(torch.full_like(imaginary, -0.5), imaginary)
    return one if shared else one * (0.5 + torch.rand(shape.rows, 1, device=device, dtype=torch.float64))


# ---- Sums of powers: v and x (rows, poles), points are steps


def _powers_problem(shape: Sums, dtype: str, shared: bool) -> str:
    return f"{{.rows = {shape.rows}, .steps = {shape.points}, .poles = {shape.poles}, .io = DType::{dtype}}}"


def _powers(shape: Sums, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    v = torch.randn(shape.rows, shape.poles, device=device, dtype=torch.complex128)
    return {"v": v.to(dtype), "x": (_poles(shape, False, device) / shape.points).to(dtype), "L": shape.points}


tunable(
    "cauchy_kernel",
    Tunable(
        "structured/cauchy",
        Sums,
        CAUCHY_TOLERANCE,
        _cauchy_problem(False),
        _separated,
        owns=lambda problem: ".conj = false" in problem,
        shares_poles=True,
    ),
)
tunable(
    "cauchy_conj",
    Tunable(
        "structured/cauchy",
        Sums,
        {dtype: CAUCHY_TOLERANCE[dtype] for dtype in ("c64", "c128")},
        _cauchy_problem(True),
        _s4,
        owns=lambda problem: ".conj = true" in problem,
        shares_poles=True,
    ),
)
tunable("log_vandermonde", Tunable("structured/vandermonde", Sums, POWERS_TOLERANCE, _powers_problem, _powers))
