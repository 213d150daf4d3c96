"""torch.ops.gdn_cuda.transposed in the emulator, and layers that transpose by it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulated import emulated
from transposed_on_device import *  # noqa: F403
from transposed_on_device import KERNEL

from gdn_cuda.nn import S7, HyenaCascade


@pytest.mark.parametrize(
    "make, width",
    [(lambda: HyenaCascade(8, 7, layout="interleaved"), 24), (lambda: HyenaCascade(8), 24), (lambda: S7(8, 4), 8)],
    ids=["HyenaCascade-short", "HyenaCascade-long", "S7"],
)
def test_layers(make: Any, width: int, seed: int) -> None:
    """Values and gradients of contiguous input have the same bits for input of other strides."""
    torch.manual_seed(seed)
    layer, more, weight = make(), torch.randn(2, 9, 2 * width), torch.randn(2, 9, 8)
    results = []
    for u in (more[..., :width], more[..., :width].contiguous(), more[..., :width].mT.contiguous().mT):
        u = u.detach().requires_grad_()
        with emulated() as launched:
            y = layer(u)
            (du,) = torch.autograd.grad(y, u, weight)
        results.append((y, du))
        copies = any(name.startswith(KERNEL) for name in launched())
        assert copies or u.mT.is_contiguous()
    for y, du in results[1:]:
        assert torch.equal(y, results[0][0]) and torch.equal(du, results[0][1])
