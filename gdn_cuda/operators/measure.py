"""Declarations of a family's module `measure`: benchmarks and their peers, tunable operators, calls for compute-sanitizer.
`load` finds these modules, so nothing else lists operators or kernels."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from .tunable import Tunable

Call = Callable[[], object]
Inputs = dict[str, Any]
Outcome = tuple[Tensor, Tensor]  # the output, and the final states in batch order, or gradients
PeerOutcome = Outcome | tuple[Tensor, None]  # None: no state, or no gradients


@dataclass
class Work:
    """A call on given inputs."""

    call: Call
    bytes: int
    flops: int
    # For operators with peers:
    inputs: Inputs = field(default_factory=dict, repr=False)
    outcome: Callable[[Inputs], Outcome] | None = None  # makes a call that does not modify the inputs
    checked: Inputs = field(default_factory=dict, repr=False)  # the inputs to compare outcomes on


# Ceilings of the roof by device. They are constants, because the measured speed of a product varies with temperature. Other
# devices use the ceilings that are measured in the run.
NOMINAL_CEILINGS = {"NVIDIA H200": {"copy_bytes_per_s": 4.3e12, "bf16_flop_per_s": 790e12}}


def roof_us(moved: int, flops: int, ceilings: dict[str, float]) -> float:
    """The time of the bytes or of the FLOPs, whichever is longer."""
    return max(moved / ceilings["copy_bytes_per_s"], flops / ceilings["bf16_flop_per_s"]) * 1e6


@dataclass
class Case:
    shape: str
    prepare: Callable[[], Work]
    captured: bool = True  # timed as a CUDA graph replay, otherwise call by call
    called: bool = False  # timed call by call too
    curve: tuple[str, int] | None = None  # plotted curve, and the position on it
    # Cases that differ only in this (a layout, a dtype, the gates) are columns of one row of a page, and panels of a plot.
    kind: str = ""

    @property
    def row(self) -> str:
        """The shape without the kind; cases that differ only in their kind have the same row."""
        return self.shape.replace(f" {self.kind}", "", 1) if self.kind else self.shape


class Absent(Exception):
    """A peer is not measured; the message says why."""


@dataclass
class Peer:
    call: Call
    read: Callable[[Any], PeerOutcome]  # converts what the call returned to our layouts
    captured: bool = True  # timed as a graph replay where ours is
    on_host: bool = False  # computes on the CPU


# ---- What families declare


@dataclass(frozen=True)
class Bench:
    cases: Callable[[str], Iterator[Case]]  # takes the device
    peers: dict[str, Callable[[Inputs], Peer]]
    parts: tuple[str, str]  # names of the parts of an outcome


@dataclass(frozen=True)
class Measures:
    benches: dict[str, Bench] = field(default_factory=dict)  # by operator
    tunables: dict[str, Tunable] = field(default_factory=dict)  # by operator
    sanitized: dict[str, Call] = field(default_factory=dict)  # by kernel: calls that run it
    variables: dict[str, dict[str, str]] = field(default_factory=dict)  # by kernel: the environment in which they do


_MEASURES = Measures()
Cases = TypeVar("Cases", bound=Callable[[str], Iterator[Case]])
Run = TypeVar("Run", bound=Call)


def bench(
    peers: dict[str, Callable[[Inputs], Peer]] | None = None, second: str = "state", operator: str | None = None
) -> Callable[[Cases], Cases]:
    """Declares the cases of `operator`, by default the one that the function is named after. `second` names the other part of
    its outcomes."""

    def declare(cases: Cases) -> Cases:
        _MEASURES.benches[operator or cases.__name__] = Bench(cases, peers or {}, ("output", second))
        return cases

    return declare


def tunable(operator: str, declared: Tunable) -> None:
    _MEASURES.tunables[operator] = declared


def sanitizes(*kernels: str, variables: dict[str, str] | None = None) -> Callable[[Run], Run]:
    """Declares calls that run these kernels at sizes small enough for compute-sanitizer, in a process with these environment
    variables; without names, the kernel that the function is named after. A name that two families have needs its family, as
    "gdn/prefill"."""

    def declare(run: Run) -> Run:
        names = kernels or (run.__name__,)
        _MEASURES.sanitized.update(dict.fromkeys(names, run))
        _MEASURES.variables.update(dict.fromkeys(names, variables or {}))
        return run

    return declare


def families(module: str) -> list[str]:
    """The full names of this module in all families, that is, in all folders of gdn_cuda that have it."""
    package = __name__.split(".")[0]
    root = Path(importlib.import_module(package).__path__[0])
    folders = (found.name for found in pkgutil.iter_modules([str(root)]) if found.ispkg and found.name != "operators")
    return [f"{package}.{folder}.{module}" for folder in folders if (root / folder / f"{module}.py").exists()]


@functools.cache
def load() -> Measures:
    """The declarations of all families."""
    for family in families("measure"):
        importlib.import_module(family)
    return _MEASURES


def operator_of(kernel: str, problem: str) -> str:
    """The operator of a stored winner, or the kernel if this version has no operator for it."""
    return next((name for name, one in load().tunables.items() if one.kernel == kernel and one.owns(problem)), kernel)


# ---- Used by families' modules


def normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


IMPORTED_PEERS: set[str] = set()  # packages of peers imported since the set was cleared


def import_peer(module: str, name: str) -> Any:
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a peer may fail to import with any error; it is left out then
        raise Absent(f"{module}.{name}: {type(error).__name__}: {error}") from error
    IMPORTED_PEERS.add(module.partition(".")[0])
    return found


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normally distributed values on the GPU."""
    return torch.randn(*shape, dtype=torch.promote_types(dtype, torch.float32), device="cuda").to(dtype)
