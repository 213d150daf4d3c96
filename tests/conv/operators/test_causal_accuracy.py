"""The table of causal_accuracy.py for CPU tensors; `pytest -s` prints it."""

from __future__ import annotations

import causal_accuracy
import pytest
import scan_accuracy

PARTS = causal_accuracy.parts(length=104)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    scan_accuracy.check(part, PARTS, "cpu", seed)
