"""Invalid arguments of s7_scan raise an error that names argument, expected and got."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gdn_cuda import s7_scan

GOOD = {"u": torch.ones(2, 3, 4), "A": torch.ones(2, 5, 4), "B": torch.ones(2, 5, 3, 4), "C": torch.ones(2, 3, 5, 4)}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"u": torch.ones(3, 4)}, "u: expected rank 3 (b, H, L), got (3, 4)"),
    ({"A": torch.ones(2, 5)}, "A: expected rank 3 (b, N, L), got (2, 5)"),
    ({"A": torch.ones(2, 5, 3)}, "A: expected (b, N, L) = (2, 5, 4), got (2, 5, 3)"),
    ({"A": torch.ones(2, 5, 4, dtype=torch.complex64)}, "A: expected float32, got complex64"),
    ({"B": torch.ones(2, 3, 5, 4)}, "B: expected (b, N, H, L) = (2, 5, 3, 4), got (2, 3, 5, 4)"),
    ({"C": torch.ones(2, 5, 3, 4)}, "C: expected (b, H, N, L) = (2, 3, 5, 4), got (2, 5, 3, 4)"),
    ({"bias": torch.ones(2, 5, 1)}, "bias: expected (b, N, L) = (2, 5, 4), got (2, 5, 1)"),
    ({"bias": torch.ones(2, 5, 4).bfloat16()}, "bias: expected float32, got bfloat16"),
    ({"u": torch.ones(2, 4, 3).mT}, "u: expected a contiguous last dimension, got stride 3"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^s7_scan: {re.escape(message)}"):
        s7_scan(**(GOOD | change))


def test_tensors_without_elements_have_any_strides() -> None:
    """`.contiguous()` returns them as they are."""
    empty = {name: torch.ones(x[:0].mT.shape).mT for name, x in GOOD.items()}
    assert empty["u"].stride(-1) != 1
    out, last = s7_scan(**empty, return_last_state=True)
    assert out.shape == (0, 3, 4) and last.shape == (0, 5)
