"""Compares results of peers with ours."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.measure import Absent, Outcome, PeerOutcome

TOLERANCE = 2e-2  # well above the rounding errors of bf16, well below the difference between two operations


class Disagreement(Absent):
    """A peer's result differs from ours by more than rounding."""

    @classmethod
    def unless_small(cls, found: tuple[float, ...], names: tuple[str, str] = ("output", "state")) -> None:
        if not all(error < TOLERANCE for error in found):  # not any(... >= ...): NaN counts
            said = ", ".join(f"{error:.1e} of the {name}" for error, name in zip(found, names, strict=False))
            raise cls(f"its result differs from ours: relative RMS {said}")


def errors(expected: Outcome, got: PeerOutcome) -> tuple[float, ...]:
    """Relative RMS errors of output and state, without those that the peer does not return."""
    return tuple(_relative_rms(theirs, ours) for theirs, ours in zip(got, expected, strict=True) if theirs is not None)


def _relative_rms(got: Tensor, expected: Tensor) -> float:
    if got.shape != expected.shape:
        return float("inf")
    difference = torch.linalg.vector_norm(got.float() - expected.float())
    return float(difference / torch.linalg.vector_norm(expected.float()))
