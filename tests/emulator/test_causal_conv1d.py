"""The kernels of causal_conv1d, forward and backward, in the emulator against the definition in fp64."""

from __future__ import annotations

from typing import Any

import conv_oracle as oracle
import pytest
import torch
from causal_cases import LAYOUTS, WAYS, Inputs, for_oracle, inputs, laid_out, leaves
from emulated import emulated
from helpers import rel_rms

from gdn_cuda import causal_conv1d

BOUND = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}
EVERY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
BOTH_LAYOUTS = pytest.mark.parametrize("layout", LAYOUTS[:2])


def check(x: Inputs) -> None:
    given = leaves(x)
    ours = {name: y.detach().requires_grad_() for name, y in given.items()}
    exact = {name: y.detach().double().requires_grad_() for name, y in given.items()}
    expected = oracle.causal_conv1d(**for_oracle(x) | exact)
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, generator=rng) for y in expected]
    grads[0] = laid_out(grads[0].to(x["x"].dtype), "channels" if x["x"].stride(1) == 1 else "tokens")
    with emulated():
        found = causal_conv1d(**x | ours, return_final_states=True)
        of_ours = torch.autograd.grad(found, list(ours.values()), grads)
    pairs = [(y, g.double()) for y, g in zip(expected, grads, strict=True) if y.requires_grad]
    wanted: Any = [torch.zeros_like(y) for y in exact.values()]
    if pairs:
        wanted = torch.autograd.grad(
            [y for y, _ in pairs], list(exact.values()), [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
    names = ("out", "states", *exact)
    for name, mine, theirs in zip(names, (*found, *of_ours), (*expected, *wanted), strict=True):
        assert rel_rms(mine, theirs) < BOUND[mine.dtype], name


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("W", [2, 3, 4, 7, 20])
@BOTH_LAYOUTS
def test_every_way(layout: str, W: int, dtype: torch.dtype, seed: int) -> None:
    for way in WAYS.values():
        check(inputs(1, 10, 208, W, seed, dtype=dtype, layout=layout, **way))


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "B, D, L, W",
    [(1, 1, 1, 1), (2, 3, 0, 4), (0, 3, 5, 4), (2, 0, 5, 4), (2, 3, 1, 4), (3, 2, 2, 32), (2, 70, 67, 4), (1, 9, 520, 3)],
)
def test_sizes(B: int, D: int, L: int, W: int, layout: str, seed: int) -> None:
    check(inputs(B, D, L, W, seed, layout=layout, states=True, bias=True, activation="silu"))
