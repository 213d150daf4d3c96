"""Operators that can be tuned: their problems as the heuristic describes them, and inputs to measure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Any, TypeVar

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


_Shape = TypeVar("_Shape", bound="Shape")


@dataclass(frozen=True)
class Shape:
    """The sizes of a problem: a dataclass of integers, whose defaults are an example."""

    def __str__(self) -> str:
        return "x".join(map(str, astuple(self)))

    @classmethod
    def form(cls) -> str:
        return "x".join(field.name.upper() for field in fields(cls))

    @classmethod
    def parse(cls: type[_Shape], text: str) -> _Shape:
        sizes = re.split("[x×]", text)
        if len(sizes) != len(fields(cls)) or not all(re.fullmatch(r"\d{1,9}", one) and int(one) >= 1 for one in sizes):
            raise ValueError(f"SHAPE: expected {cls.form()} such as {cls()}, got {text}")
        return cls(*map(int, sizes))


@dataclass(frozen=True)
class Case:
    """One problem to tune."""

    operator: str
    declared: Tunable
    shape: Shape
    dtype: str
    shared: bool
    problem: str  # in the notation of csrc/launch/fields.hpp
    tolerance: float

    @property
    def kernel(self) -> str:
        return self.declared.kernel

    def arguments(self, device: str) -> dict[str, Any]:
        return self.declared.arguments(self.shape, TORCH_DTYPES[self.dtype], self.shared, device)

    def function(self) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        from ..runtime import package as gdn_cuda

        found: Callable[..., Tensor | tuple[Tensor, ...]] = self.declared.function or getattr(gdn_cuda, self.operator)
        return found

    def __str__(self) -> str:
        return f"{self.operator} {self.shape} {self.dtype}" + (", shared poles" if self.shared else "")


@dataclass(frozen=True)
class Tunable:
    kernel: str  # the kernel that its winners are stored under
    shape: type[Shape]
    tolerance: dict[str, float]  # by dtype, the default first
    problem: Callable[[Any, str, bool], str]  # from a shape, a dtype, and whether rows share poles
    arguments: Callable[[Any, torch.dtype, bool, str], dict[str, Any]]
    owns: Callable[[str], bool] = lambda problem: True  # whether a problem stored under the kernel is this operator's
    shares_poles: bool = False  # whether the heuristic depends on rows sharing poles
    function: Callable[..., Tensor | tuple[Tensor, ...]] | None = None  # if it is not the public function
    takes_out: bool = True
    in_place: tuple[str, ...] = ()  # arguments that are written

    def case(self, name: str, shape: Shape, dtype: str | None = None, shared: bool = False) -> Case:
        dtype = dtype or next(iter(self.tolerance))
        if dtype not in self.tolerance:
            raise ValueError(f"--dtype: expected one of {', '.join(self.tolerance)} for {name}, got {dtype}")
        return Case(name, self, shape, dtype, shared, self.problem(shape, dtype, shared), self.tolerance[dtype])
