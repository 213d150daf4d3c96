"""What a family says of measuring its operators, in its module `measure`: benchmarks and their peers, what can be tuned, and
calls for compute-sanitizer. `load` finds these modules, so nothing else lists operators or kernels."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .tunable import Tunable

Call = Callable[[], object]
Inputs = dict[str, Any]
Outcome = tuple[Tensor, Tensor]  # the output, and the last state of every sequence in the batch's order, or gradients
PeerOutcome = Outcome | tuple[Tensor, None]  # None: it has no state, or no gradients


@dataclass
class Work:
    """A call on inputs that exist."""

    call: Call
    bytes: int
    flops: int
    inputs: Inputs = field(repr=False)  # for the peers
    outcome: Callable[[Inputs], Outcome]  # of a fresh call, which leaves the inputs as they were
    checked: Inputs = field(repr=False)  # the inputs to compare outcomes on


@dataclass
class Case:
    shape: str
    prepare: Callable[[], Work]
    captured: bool = True  # measured as a CUDA graph's replay; otherwise call by call
    curve: tuple[str, int] | None = None  # the plotted curve that this is a point of, and its place on it


class Absent(Exception):
    """Why a peer is not measured."""


@dataclass
class Peer:
    call: Call
    read: Callable[[Any], PeerOutcome]  # what the call returned, in our layouts
    captured: bool = True  # where our row is a graph's replay, so is this
    on_host: bool = False  # computes on the CPU


# ---- What families declare


@dataclass(frozen=True)
class Bench:
    cases: Callable[[str], Iterator[Case]]  # of a device
    peers: dict[str, Callable[[Inputs], Peer]]
    parts: tuple[str, str]  # what an outcome consists of


@dataclass(frozen=True)
class Measures:
    benches: dict[str, Bench] = field(default_factory=dict)  # by operator
    tunables: dict[str, Tunable] = field(default_factory=dict)  # by operator
    sanitized: dict[str, Call] = field(default_factory=dict)  # by kernel: calls that run it


_MEASURES = Measures()
Cases = TypeVar("Cases", bound=Callable[[str], Iterator[Case]])
Run = TypeVar("Run", bound=Call)


def bench(
    peers: dict[str, Callable[[Inputs], Peer]] | None = None, second: str = "state", operator: str | None = None
) -> Callable[[Cases], Cases]:
    """The cases of `operator`, or of the operator that has the function's name. `second` says what outcomes have beside the
    output."""

    def declare(cases: Cases) -> Cases:
        _MEASURES.benches[operator or cases.__name__] = Bench(cases, peers or {}, ("output", second))
        return cases

    return declare


def tunable(operator: str, declared: Tunable) -> None:
    _MEASURES.tunables[operator] = declared


def sanitizes(*kernels: str) -> Callable[[Run], Run]:
    """Small calls that run these kernels, which compute-sanitizer can bear; without names, the kernel that the function is
    named after."""

    def declare(run: Run) -> Run:
        _MEASURES.sanitized.update(dict.fromkeys(kernels or (run.__name__,), run))
        return run

    return declare


def families(module: str) -> list[str]:
    """The names of that module of every family: of every folder of gdn_cuda that has it."""
    package = __name__.split(".")[0]
    root = Path(importlib.import_module(package).__path__[0])
    folders = (found.name for found in pkgutil.iter_modules([str(root)]) if found.ispkg and found.name != "operators")
    return [f"{package}.{folder}.{module}" for folder in folders if (root / folder / f"{module}.py").exists()]


@functools.cache
def load() -> Measures:
    """Of every family."""
    for family in families("measure"):
        importlib.import_module(family)
    return _MEASURES


# ---- What their modules share


def normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def import_peer(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a peer may fail to import in any way; it is only left out
        raise Absent(f"{module}.{name}: {type(error).__name__}: {error}") from error


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers on the GPU."""
    return torch.randn(*shape, dtype=torch.promote_types(dtype, torch.float32), device="cuda").to(dtype)
