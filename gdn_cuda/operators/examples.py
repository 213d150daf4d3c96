"""Examples of operators: small valid calls on CPU tensors, at least one for each combination of optional arguments. Families
list theirs in a module `examples`, or an operator's own module has them under `@example`. Tests trace each, compare it with
the reference, and pass it wrong arguments."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .measure import families

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`function(**make(B, T, seed))`: B is a leading dimension, T the tokens, points or rows. Packed calls ignore both."""

    name: str
    function: Callable[..., Any]
    make: Callable[[int, int, int], Arguments]
    packed: bool = False

    @property
    def out_argument(self) -> bool:
        return "out" in inspect.signature(self.function).parameters


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def poisoned(like: Tensor) -> Tensor:
    return torch.full_like(like, torch.nan, memory_format=torch.contiguous_format)


def draw(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=wide).to(dtype)


def call_operator(name: str) -> Callable[..., Any]:
    """An operator without a public function, as a function of named arguments."""

    def call(**x: Any) -> Any:
        return getattr(torch.ops.gdn_cuda, name).default(**x)

    call.__name__ = name
    return call


_DECLARED: dict[str, Case] = {}
Make = TypeVar("Make", bound=Callable[[int, int, int], Arguments])


def example(function: Callable[..., Any], name: str | None = None, packed: bool = False) -> Callable[[Make], Make]:
    """Declares the arguments of an example of `function`, which it is named after by default."""

    def declare(make: Make) -> Make:
        case = Case(name or function.__name__, function, make, packed)
        _DECLARED[case.name] = case
        return make

    return declare


def load() -> dict[str, Case]:
    """The examples of all families, by name."""
    found: dict[str, Case] = {}
    for family in families("examples"):
        found |= importlib.import_module(family).CASES
    return found | _DECLARED
