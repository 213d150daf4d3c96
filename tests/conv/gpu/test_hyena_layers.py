"""gdn_cuda.nn's Hyena layers on the GPU against themselves in fp64 on the CPU: prompts, parts and steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers import rel_rms

from gdn_cuda.nn import HyenaCascade, ShortConv

BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 1.5e-2}  # a bf16 layer rounds the filtered projections, y and intermediate steps


@pytest.mark.parametrize("layout", ["interleaved", "thirds"])
@pytest.mark.parametrize("length", [None, 7, 64, 128])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_hyena_cascade(dtype: torch.dtype, length: int | None, layout: str, seed: int) -> None:
    torch.manual_seed(seed)
    layer = HyenaCascade(64, length, hyena_filter_groups=16, layout=layout, dtype=dtype).requires_grad_(False)
    if layer.D is not None:
        torch.nn.init.normal_(layer.D)
    check(layer, torch.randn(2, 300, 192, dtype=dtype), BOUNDS[dtype])


@pytest.mark.parametrize("dtype", BOUNDS)
def test_short_conv(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    check(ShortConv(64, dtype=dtype).requires_grad_(False), torch.randn(2, 300, 64, dtype=dtype), BOUNDS[dtype])


@pytest.mark.parametrize("length", [None, 7, 64, 128, "short conv"])
def test_gradients(length: Any, seed: int) -> None:
    torch.manual_seed(seed)
    short = length == "short conv"
    layer = ShortConv(64) if short else HyenaCascade(64, length, hyena_filter_groups=16)
    u, weight = torch.randn(2, 300, 64 if short else 192), torch.randn(2, 300, 64)
    expected = gradients(copy.deepcopy(layer).double(), u.double(), weight.double())
    found = gradients(layer.cuda(), u.cuda(), weight.cuda())
    for name, gradient in expected.items():
        assert rel_rms(found[name], gradient) < BOUNDS[torch.float32], name


def gradients(layer: Any, u: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    leaves = {"u": u.requires_grad_(), **dict(layer.named_parameters())}
    return dict(zip(leaves, torch.autograd.grad(layer(u), list(leaves.values()), weight), strict=True))


def check(layer: Any, u: torch.Tensor, bound: float) -> None:
    expected = copy.deepcopy(layer).double()(u.double())
    layer, u, parts, state = layer.cuda(), u.cuda(), [], None
    assert rel_rms(layer(u), expected) < bound
    for start, end in ((0, 100), (100, 296)):
        y, state = layer(u[:, start:end], state, return_state=True)
        parts.append(y)
    for t in range(296, 300):
        y, state = layer.step(u[:, t], state)
        parts.append(y[:, None])
    assert rel_rms(torch.cat(parts, 1), expected) < bound
