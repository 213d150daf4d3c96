"""The kernels of rms_norm_gated in the emulator against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from emulated import emulated
from rms_norm_cases import inputs
from rms_norm_on_device import *  # noqa: F403
from rms_norm_on_device import BF16, F32, check_on
from rms_norm_oracle import NormOptions

from gdn_cuda import rms_norm_gated


@pytest.mark.parametrize("group_size", [5, 32, 160])
def test_groups(group_size: int, device: Device, seed: int) -> None:
    """More groups than blocks."""
    check_on(device, inputs(7, 480, seed=seed, dtypes=(BF16, BF16, BF16)), NormOptions(group_size=group_size), seed, 1)


def test_rows_of_zeros(seed: int) -> None:
    zeros, ones = torch.zeros(2, 24, requires_grad=True), torch.ones(24)
    with emulated():
        out = rms_norm_gated(zeros, None, ones)
        (grad,) = torch.autograd.grad(out.sum(), zeros)
        without_eps = rms_norm_gated(zeros, None, ones, 0.0)
    assert not out.any() and torch.allclose(grad, torch.full_like(grad, 1e-5**-0.5))
    assert bool(without_eps.isnan().all())


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_every_slope_of_the_gate(activation: str) -> None:
    """Element by element, also where the gate is nearly open or closed."""
    gate = torch.linspace(-80, 60, 136)[None].requires_grad_()
    wide = gate.detach().double()
    power = torch.exp(-wide.abs())
    slope = power / (1 + power) ** 2  # torch's has no digits in fp64 where the gate is open
    expected = slope if activation == "sigmoid" else wide.sigmoid() + wide * slope
    with emulated():
        (found,) = torch.autograd.grad(rms_norm_gated(torch.ones(1, 136), gate, None, 0.0, activation).sum(), gate)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-36)


def test_the_other_gradients_without_a_gate_or_a_weight(seed: int) -> None:
    """A tensor that needs no gradient gets none, and changes no other's."""
    given = [y for y in inputs(3, 16, seed=seed, dtypes=(F32, F32, F32)) if y is not None]
    with emulated():
        leaves = [y.clone().requires_grad_() for y in given]
        every = torch.autograd.grad(rms_norm_gated(*leaves).sum(), leaves)
        for i in range(3):
            alone = [y.clone().requires_grad_(i == j) for j, y in enumerate(given)]
            (found,) = torch.autograd.grad(rms_norm_gated(*alone).sum(), alone[i])
            assert torch.equal(found, every[i])
