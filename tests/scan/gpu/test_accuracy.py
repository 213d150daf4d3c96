"""The table of scan_accuracy.py for kernels, which docs/numerics.md has; `pytest -s` prints it."""

from __future__ import annotations

import pytest
import scan_accuracy

PARTS = scan_accuracy.parts(length=500, long=65536)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    scan_accuracy.check(part, PARTS, "cuda", seed)
