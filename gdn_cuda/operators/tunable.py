"""Operators that can be tuned: their problems in the terms of the heuristic, and inputs to measure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .measure import load

TORCH_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


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
    """One problem to tune."""

    operator: str
    kernel: str
    shape: Shape
    dtype: str
    shared: bool
    problem: str  # in the core's notation
    tolerance: float

    def arguments(self, device: str) -> dict[str, Any]:
        return load().tunables[self.operator].arguments(self.shape, TORCH_DTYPES[self.dtype], self.shared, device)

    def __str__(self) -> str:
        return f"{self.operator} {self.shape} {self.dtype}" + (", shared poles" if self.shared else "")


@dataclass(frozen=True)
class Tunable:
    kernel: str  # under which its winners are stored
    tolerance: dict[str, float]  # by dtype, the default first
    shares_poles: bool  # whether the heuristic depends on rows sharing poles
    problem: Callable[[Shape, str, bool], str]
    arguments: Callable[[Shape, torch.dtype, bool, str], dict[str, Any]]
    owns: Callable[[str], bool]  # whether a problem stored under the kernel is this operator's

    def case(self, name: str, shape: Shape, dtype: str | None, shared: bool) -> Case:
        dtype = dtype or next(iter(self.tolerance))
        if dtype not in self.tolerance:
            raise ValueError(f"--dtype: expected one of {', '.join(self.tolerance)} for {name}, got {dtype}")
        if shared and not self.shares_poles:
            names = ", ".join(other for other, one in load().tunables.items() if one.shares_poles)
            raise ValueError(f"--shared-poles: expected one of {names}, to which it matters, got {name}")
        return Case(name, self.kernel, shape, dtype, shared, self.problem(shape, dtype, shared), self.tolerance[dtype])


def operator_of(kernel: str, problem: str) -> str:
    """The operator of a stored winner, or the kernel where this version has no such operator."""
    return next((name for name, one in load().tunables.items() if one.kernel == kernel and one.owns(problem)), kernel)
