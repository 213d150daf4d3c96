"""Gradients of ssd_scan on the CPU, by finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda


def _normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64)


@pytest.mark.parametrize("divided", ["padded", "packed", "numbered"])
@pytest.mark.parametrize("z", [False, True])
@pytest.mark.parametrize("D", [0, 1, 2])
def test_gradcheck(divided: str, z: bool, D: int) -> None:
    torch.manual_seed(0)
    batch, T, H, P, G, N = 1 if divided == "packed" else 2, 70, 4, 3, 2, 5
    states = 3 if divided == "packed" else batch
    x = {
        "x": _normal(batch, T, H, P),
        "dt": _normal(batch, T, H),
        "A": -_normal(H).exp(),
        "B": _normal(batch, T, G, N),
        "C": _normal(batch, T, G, N),
        "dt_bias": _normal(H),
        "initial_state": _normal(states, H, P, N),
    }
    x |= {"z": _normal(batch, T, H, P)} if z else {}
    x |= {"D": _normal(*((H,), (H, P))[D - 1])} if D else {}
    rest: dict[str, Any] = {"dt_softplus": True, "has_initial_state": torch.tensor([True, False, True][:states])}
    rest |= {"cu_seqlens": torch.tensor([0, 30, 30, 70])} if divided == "packed" else {}
    rest |= {"seq_idx": torch.tensor([0] * 20 + [1] * 50).int().repeat(batch, 1)} if divided == "numbered" else {}

    def call(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return gdn_cuda.ssd_scan(**dict(zip(x, tensors, strict=True)), **rest, dt_limit=(0.1, 2.0), return_last_state=True)

    assert torch.autograd.gradcheck(call, [y.requires_grad_() for y in x.values()], fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("z", [False, True])
def test_gradients_of_any_strides(z: bool) -> None:
    """A sum's has strides of 0, a transposed tensor's no contiguous rows."""
    torch.manual_seed(0)
    x, dt, B = _normal(2, 5, 2, 3).requires_grad_(), _normal(2, 5, 2).exp(), _normal(2, 5, 1, 4)
    gate = _normal(2, 5, 2, 3) if z else None
    out, last = gdn_cuda.ssd_scan(x, dt, -_normal(2).exp(), B, B, z=gate, return_last_state=True)
    ones = torch.ones_like(out), torch.ones_like(last)
    (expected,) = torch.autograd.grad((out, last), x, ones, retain_graph=True)
    (found,) = torch.autograd.grad(out.sum() + last.sum(), x, retain_graph=True)
    torch.testing.assert_close(found, expected)
    turned = tuple(y.mT.contiguous().mT for y in ones)
    (found,) = torch.autograd.grad((out, last), x, turned)
    torch.testing.assert_close(found, expected)
