"""Measuring the candidates of one problem: each is run, compared with the heuristic's own result, and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..operators.tunable import Case

if TYPE_CHECKING:
    from .._C import DeviceTraits

LEAST_GAIN = 0.02  # share of time that a choice must gain over the heuristic's; less may be noise


class WrongResult(RuntimeError):
    """A candidate's result differs from that of the heuristic's choice: a bug of the library. Nothing is stored."""


class Runner(Protocol):
    """Runs the problem with the choice that is being attempted."""

    def result(self) -> Tensor: ...
    def decided(self) -> bool: ...  # whether the attempted choice ran
    def time_us(self) -> float: ...


class GpuRunner:
    """The operator itself, on this process's current GPU."""

    def __init__(self, case: Case, device: DeviceTraits, repeats: int):
        from .bench_timing import Timer

        torch.manual_seed(0)
        self._case, self._ordinal = case, device["ordinal"]
        self._arguments, function = case.arguments("cuda"), case.function()
        self._start = {name: self._arguments[name].clone() for name in case.declared.in_place}
        self._like = [torch.empty_like(one) for one in results(function(**self._arguments))]
        given = {"out": self._like[0]} if case.declared.takes_out else {}
        self._call = partial(function, **self._arguments, **given)
        self._timer = Timer(repeats)

    def result(self) -> Tensor:
        """The results and the arguments that are written in place, concatenated into one row."""
        for name, start in self._start.items():
            self._arguments[name].copy_(start)
        if self._case.declared.takes_out:
            self._like[0].fill_(torch.nan)  # shows elements that a candidate does not write
        else:
            _leave_nan(self._like)
        parts = [*results(self._call()), *(self._arguments[name] for name in self._start)]
        return torch.cat([part.flatten() for part in parts])

    def decided(self) -> bool:
        from .. import _C

        return _C.tuned_attempted(self._case.kernel, self._ordinal)

    def time_us(self) -> float:
        return self._timer.graph_us(self._call)  # excludes host time, which exceeds that of small kernels


def _leave_nan(like: list[Tensor]) -> None:
    """Fills the memory that the next tensors of these sizes are allocated in."""
    torch.cuda.empty_cache()
    [torch.full_like(one, torch.nan) for one in like]


def results(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return returned if isinstance(returned, tuple) else (returned,)


@dataclass(frozen=True)
class Measured:
    choice: str
    us: float
    error: float  # relative RMS, against the heuristic's result


@dataclass(frozen=True)
class Outcome:
    case: Case
    candidates: list[Measured]  # the heuristic's own first

    @property
    def heuristic(self) -> Measured:
        return self.candidates[0]

    @property
    def winner(self) -> Measured:
        best = min(self.candidates, key=lambda measured: measured.us)
        return best if best.us < (1 - LEAST_GAIN) * self.heuristic.us else self.heuristic

    def as_dict(self) -> dict[str, Any]:
        return {
            "operator": self.case.operator,
            "shape": str(self.case.shape),
            "dtype": self.case.dtype,
            "shared_poles": self.case.shared,
            "kernel": self.case.kernel,
            "problem": self.case.problem,
            "winner": self.winner.choice,
            "heuristic": self.heuristic.choice,
            "candidates": [vars(measured) for measured in self.candidates],
        }


Progress = Callable[[int, int, Measured], None]


def tune(case: Case, device: DeviceTraits, runner: Runner, progress: Progress) -> Outcome:
    """Measures every candidate; raises WrongResult, and RuntimeError where a candidate did not run."""
    from .. import _C

    choices = _C.tuned_candidates(case.kernel, case.problem, device)
    measured: list[Measured] = []
    expected: Tensor | None = None
    try:
        for choice in choices:
            _C.tuned_attempt(case.kernel, case.problem, choice, device)
            result = runner.result()
            if not runner.decided():
                raise RuntimeError(
                    f"{case}: expected the call to be the problem {case.problem} to {case.kernel}, got another one: "
                    "nothing can be measured, please report it"
                )
            expected = result if expected is None else expected
            error = difference(result, expected)
            if not error <= case.tolerance:
                raise WrongResult(
                    f"{case}: {choice}: expected the result of {choices[0]} within {case.tolerance:.1e} (relative RMS), "
                    f"got {error:.1e}; nothing is stored, please report it"
                )
            measured.append(Measured(choice, runner.time_us(), error))
            progress(len(measured), len(choices), measured[-1])
    finally:
        _C.tuned_forget()
    return Outcome(case, measured)


def difference(result: Tensor, expected: Tensor) -> float:
    """The relative RMS difference; infinite if any value of either tensor is not finite."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    result, expected = result.to(wide), expected.to(wide)
    if not bool(torch.isfinite(result).all() and torch.isfinite(expected).all()):
        return float("inf")
    size = expected.norm().item()
    return (result - expected).norm().item() / (size if size > 0 else 1)
