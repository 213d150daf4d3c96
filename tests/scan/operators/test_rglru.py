"""Invalid arguments of rglru_scan raise an error that names argument, expected and got."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gdn_cuda import rglru_scan

ONES = torch.ones(2, 3, 4)
A = torch.full((3, 1), 0.5)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"u": ONES[0]}, "u: expected rank 3 (B, D, L), got (3, 4)"),
    ({"u": ONES.int()}, "u: expected float32 or bfloat16 or float16 or float64, got int32"),
    ({"delta": ONES[:1]}, "delta: expected (B, D, L) = (2, 3, 4), got (1, 3, 4)"),
    ({"delta": ONES.bfloat16()}, "delta: expected float32, got bfloat16"),
    ({"A": A.bfloat16()}, "A: expected float32, got bfloat16"),
    ({"A": A[:, :0]}, "A: expected 1 to 256 states, got (3, 0)"),
    ({"A": A.expand(3, 257)}, "A: expected 1 to 256 states, got (3, 257)"),
    ({"A": A[:2]}, "A: expected (D, N) = (3, 1), got (2, 1)"),
    ({"initial_state": torch.ones(1, 3, 1)}, "initial_state: expected (B or sequences, D, N) = (2, 3, 1), got (1, 3, 1)"),
    ({"initial_state": torch.ones(2, 3, 1).double()}, "initial_state: expected float32, got float64"),
    ({"cu_seqlens": torch.tensor([0, 4])}, "u: expected (1, D, L), as cu_seqlens is given, got (2, 3, 4)"),
    ({"reset": torch.ones(2, 3).bool()}, "reset: expected (B, L) = (2, 4), got (2, 3)"),
    ({"reset": torch.ones(2, 4)}, "reset: expected int32 or int64, got float32"),
    ({"max_sqrt_gradient": 0.0}, "max_sqrt_gradient: expected a positive number, got 0"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^rglru_scan: {re.escape(message)}"):
        rglru_scan(**({"u": ONES, "delta": ONES, "A": A} | change))


@pytest.mark.parametrize("offsets", [[1, 4], [0, 5], [0, 3, 2, 4], [-1, 4]])
def test_offsets_on_the_cpu_are_checked(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"^rglru_scan: cu_seqlens: expected offsets that start at 0, never decrease"):
        rglru_scan(ONES[:1], ONES[:1], A, cu_seqlens=torch.tensor(offsets))


def test_gradients_have_no_gradients() -> None:
    u = ONES.clone().requires_grad_()
    (grad,) = torch.autograd.grad(rglru_scan(u, ONES, A).square().sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^rglru_scan: gradients of gradients are not computed"):
        torch.autograd.grad(grad.sum(), u)


def test_other_derivatives_are_refused_by_name() -> None:
    with pytest.raises(RuntimeError, match=r"^rglru_scan: forward-mode derivatives are not computed"):
        torch.func.jvp(lambda u: rglru_scan(u, ONES, A), (ONES,), (ONES,))
