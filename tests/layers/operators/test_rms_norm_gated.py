"""Arguments of rms_norm_gated that are refused, and compiled calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from rms_norm_cases import inputs

from gdn_cuda import rms_norm_gated

ONES = torch.ones(2, 3, 4)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": torch.ones(())}, "x: expected (…, D), got ()"),
    ({"x": ONES.int()}, "x: expected float32 or bfloat16 or float16 or float64, got int32"),
    ({"gate": ONES[:1]}, "gate: expected the shape of x (2, 3, 4), got (1, 3, 4)"),
    ({"gate": ONES.bool()}, "gate: expected float32 or bfloat16 or float16 or float64, got bool"),
    ({"weight": ONES[0]}, "weight: expected (D,) = (4,), got (3, 4)"),
    ({"weight": torch.ones(3)}, "weight: expected (D,) = (4,), got (3,)"),
    ({"weight": torch.ones(4).long()}, "weight: expected float32 or bfloat16 or float16 or float64, got int64"),
    ({"eps": -1.0}, "eps: expected a number that is not negative, got -1"),
    ({"eps": float("nan")}, "eps: expected a number that is not negative, got nan"),
    ({"activation": "relu"}, "activation: expected one of 'silu', 'swish', 'sigmoid', got 'relu'"),
    ({"group_size": 3}, "group_size: expected a divisor of D = 4, got 3"),
    ({"group_size": 0}, "group_size: expected a divisor of D = 4, got 0"),
    ({"group_size": -4}, "group_size: expected a divisor of D = 4, got -4"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^rms_norm_gated: {re.escape(message)}"):
        rms_norm_gated(**({"x": ONES, "gate": ONES, "weight": torch.ones(4)} | change))


def test_more_strides_than_kernels_support() -> None:
    x = torch.ones(*(3,) * 8)[..., ::2, :].permute(6, 5, 4, 3, 2, 1, 0, 7)
    with pytest.raises(ValueError, match=r"^rms_norm_gated: x: expected leading dimensions that 6 strides describe"):
        rms_norm_gated(x, None, None)


def test_other_derivatives_are_refused_by_name() -> None:
    x = ONES.clone().requires_grad_()
    (grad,) = torch.autograd.grad(rms_norm_gated(x, ONES, None).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^rms_norm_gated: gradients of gradients are not computed"):
        torch.autograd.grad(grad.sum(), x)
    with pytest.raises(RuntimeError, match=r"^rms_norm_gated: forward-mode derivatives are not computed"):
        torch.func.jvp(lambda x: rms_norm_gated(x, ONES, None), (ONES,), (ONES,))


def test_compiled(seed: int) -> None:
    given = inputs(2, 3, 8, seed=seed, dtypes=(torch.bfloat16, torch.float32, torch.float32))
    leaves = [y.requires_grad_() for y in given if y is not None]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return rms_norm_gated(*x, norm_before_gate=False, group_size=4).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for mine, other in zip(
        torch.autograd.grad(compiled(*leaves), leaves), torch.autograd.grad(loss(*leaves), leaves), strict=True
    ):
        assert torch.equal(mine, other)
