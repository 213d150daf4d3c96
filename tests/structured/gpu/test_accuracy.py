"""The table of structured_accuracy.py for kernels, as in docs/numerics.md; `pytest -s` prints it."""

from __future__ import annotations

import pytest
import structured_accuracy

PARTS = structured_accuracy.parts(n=384, systems=(384, 600), poles=64, points=16384)


@pytest.mark.parametrize("part", PARTS)
def test_within_bounds(part: str, seed: int) -> None:
    structured_accuracy.check(part, PARTS, "cuda", seed)
