"""What can be tuned: an entry an operator, with its problem as the heuristic sees it and inputs to measure it on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TORCH_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "c64": torch.complex64,
    "c128": torch.complex128,
}

# Twice what a result may be off (relative RMS), because both sides of the comparison may: fp32 as the documents promise it,
# the narrow ones by the one rounding at the end. A wrong index is off by far more than any of these.
CAUCHY_TOLERANCE = {"f32": 2e-6, "c64": 2e-6, "f64": 1e-12, "c128": 1e-12, "bf16": 2**-8, "f16": 2**-10}
POWERS_TOLERANCE = {"c64": 2e-5, "c128": 1e-12}


@dataclass(frozen=True)
class Shape:
    rows: int
    poles: int
    points: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.poles}x{self.points}"


def parse_shape(text: str) -> Shape:
    match = re.fullmatch(r"(\d{1,9})[x×](\d{1,9})[x×](\d{1,9})", text)
    if match is None or min(map(int, match.groups())) < 1:
        raise ValueError(f"SHAPE: expected ROWSxPOLESxPOINTS such as 1024x32x16384, got {text}")
    return Shape(*map(int, match.groups()))


@dataclass(frozen=True)
class Case:
    """One problem: tuned once, stored once."""

    operator: str
    kernel: str
    shape: Shape
    dtype: str
    shared: bool
    problem: str  # as the core writes it
    tolerance: float

    def arguments(self, device: str) -> dict[str, Any]:
        return OPERATORS[self.operator].arguments(self.shape, TORCH_DTYPES[self.dtype], self.shared, device)

    def __str__(self) -> str:
        return f"{self.operator} {self.shape} {self.dtype}" + (", shared poles" if self.shared else "")


@dataclass(frozen=True)
class Operator:
    kernel: str  # what its winners are filed under
    tolerance: dict[str, float]  # the dtypes that it has, the usual one first
    shares_poles: bool  # whether the heuristic asks if rows share poles
    problem: Callable[[Shape, str, bool], str]
    arguments: Callable[[Shape, torch.dtype, bool, str], dict[str, Any]]
    owns: Callable[[str], bool]  # of the problems filed under its kernel

    def case(self, name: str, shape: Shape, dtype: str | None, shared: bool) -> Case:
        dtype = dtype or next(iter(self.tolerance))
        if dtype not in self.tolerance:
            raise ValueError(f"--dtype: expected one of {', '.join(self.tolerance)} for {name}, got {dtype}")
        if shared and not self.shares_poles:
            names = ", ".join(other for other, one in OPERATORS.items() if one.shares_poles)
            raise ValueError(f"--shared-poles: expected one of {names}, to which it matters, got {name}")
        return Case(name, self.kernel, shape, dtype, shared, self.problem(shape, dtype, shared), self.tolerance[dtype])


def operator_of(kernel: str, problem: str) -> str:
    """Whose winner it is; its kernel, if this version has no such operator."""
    return next((name for name, one in OPERATORS.items() if one.kernel == kernel and one.owns(problem)), kernel)


# ---- Cauchy sums: v (rows, poles), points (points), poles (rows, poles) or (poles)


def _cauchy_problem(conj: bool) -> Callable[[Shape, str, bool], str]:
    def problem(shape: Shape, dtype: str, shared: bool) -> str:
        return (
            f"{{.rows = {shape.rows}, .shared_rows = {shape.rows if shared else 1}, .points = {shape.points}, "
            f".poles = {shape.poles}, .io = DType::{dtype}, .conj = {str(conj).lower()}}}"
        )

    return problem


def _apart(shape: Shape, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    """Points to the right, poles to the left, residues that do not cancel: no digits are lost, so results can be compared."""
    real = torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype

    def draw(*size: int, sign: int) -> Tensor:
        part = sign * (1 + torch.rand(*size, device=device, dtype=torch.float64)).to(real)
        return torch.complex(part, 0.5 * torch.rand_like(part)) if dtype.is_complex else part

    of_poles = (shape.poles,) if shared else (shape.rows, shape.poles)
    return {
        "v": draw(shape.rows, shape.poles, sign=1),
        "omega": draw(shape.points, sign=1),
        "lambd": draw(*of_poles, sign=-1),
    }


def _s4(shape: Shape, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    """Points on the imaginary axis, poles as S4 begins with them."""
    theta = math.pi * torch.arange(shape.points, dtype=torch.float64, device=device) / shape.points
    z = torch.complex(torch.zeros_like(theta), 2 * torch.tan(0.5 * theta))
    v = torch.randn(shape.rows, shape.poles, device=device, dtype=torch.complex128)
    return {"v": v.to(dtype), "z": z.to(dtype), "w": _poles(shape, shared, device).to(dtype)}


def _poles(shape: Shape, shared: bool, device: str) -> Tensor:
    imaginary = math.pi * torch.arange(shape.poles, device=device, dtype=torch.float64)
    one = torch.complex(torch.full_like(imaginary, -0.5), imaginary)
    return one if shared else one * (0.5 + torch.rand(shape.rows, 1, device=device, dtype=torch.float64))


# ---- Sums of powers: v and x (rows, poles), points are steps


def _powers_problem(shape: Shape, dtype: str, shared: bool) -> str:
    return f"{{.rows = {shape.rows}, .steps = {shape.points}, .poles = {shape.poles}, .io = DType::{dtype}}}"


def _powers(shape: Shape, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    v = torch.randn(shape.rows, shape.poles, device=device, dtype=torch.complex128)
    return {"v": v.to(dtype), "x": (_poles(shape, False, device) / shape.points).to(dtype), "L": shape.points}


OPERATORS = {
    "cauchy_kernel": Operator(
        "structured/cauchy", CAUCHY_TOLERANCE, True, _cauchy_problem(False), _apart, lambda problem: ".conj = false" in problem
    ),
    "cauchy_conj": Operator(
        "structured/cauchy",
        {dtype: CAUCHY_TOLERANCE[dtype] for dtype in ("c64", "c128")},
        True,
        _cauchy_problem(True),
        _s4,
        lambda problem: ".conj = true" in problem,
    ),
    "log_vandermonde": Operator(
        "structured/vandermonde", POWERS_TOLERANCE, False, _powers_problem, _powers, lambda problem: True
    ),
}
