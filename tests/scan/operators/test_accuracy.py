"""The table of scan_accuracy.py for CPU tensors; `pytest -s` prints it."""

from __future__ import annotations

import pytest
import scan_accuracy

PARTS = scan_accuracy.parts(length=100, long=4096)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    scan_accuracy.check(part, PARTS, "cpu", seed)
