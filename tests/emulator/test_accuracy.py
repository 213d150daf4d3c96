"""The table of scan_accuracy.py for emulated kernels, without errors of approximate instructions; `pytest -s` prints it."""

from __future__ import annotations

import pytest
import scan_accuracy
from emulated import emulated

PARTS = scan_accuracy.parts(length=150, long=65536)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    with emulated():
        scan_accuracy.check(part, PARTS, "cpu", seed)
