"""The table of structured_accuracy.py for CPU tensors and the CPU equivalents of kernels; `pytest -s` prints it."""

from __future__ import annotations

import pytest
import structured_accuracy

PARTS = structured_accuracy.parts(n=48, systems=(48,), poles=16, points=512)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    structured_accuracy.check(part, PARTS, "cpu", seed)
