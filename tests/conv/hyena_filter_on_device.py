"""hyena_filter's kernels, forward and backward, against their definitions in fp64."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from helpers import rel_rms
from hyena_cases import modal_parameters
from torch import Tensor

from gdn_cuda import hyena_filter
from gdn_cuda.conv.reference_hyena import modal_filter


def forward(device: Device, residues: Tensor, log_poles: Tensor, L: int) -> Tensor:
    with device.kernels():
        return hyena_filter(residues.to(device.name), log_poles.to(device.name), L)


@pytest.mark.parametrize("L", [1, 31, 32, 33, 255, 256, 257, 1023, 1025, 4096, 4097, 9001, 40000, 2**20])
@pytest.mark.parametrize("S", [1, 5, 16, 64])
def test_filters(S: int, L: int, device: Device, seed: int) -> None:
    device.skip_above(9001, L)
    residues, log_poles, _ = (x.to(device.name) for x in modal_parameters(3, 3, S, seed, torch.float32))
    expected = modal_filter(residues.double(), log_poles.double(), L)
    assert rel_rms(forward(device, residues, log_poles, L), expected) < 2e-6


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-3, -0.1, -1.0, -50.0, -1000.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float, device: Device) -> None:
    L = device.size(5000, 2**20)
    residues, log_poles = torch.ones(2, 1, device=device.name), torch.full((2, 1), log_pole, device=device.name)
    h, expected = forward(device, residues, log_poles, L), modal_filter(residues.double(), log_poles.double(), L)
    assert rel_rms(h, expected) < 1e-6
    if device.emulate:  # which has no approximate exponential
        normal = expected > 1e-37
        assert (h[normal] / expected[normal] - 1).abs().max() < 2e-6


def test_no_filters(device: Device) -> None:
    assert forward(device, torch.ones(0, 3), torch.ones(0, 3), 7).shape == (0, 7)
    assert forward(device, torch.ones(2, 3), torch.ones(2, 3), 0).shape == (2, 0)


@pytest.mark.parametrize("L", [0, 1, 33, 256, 1025, 4097, 16384, 16385, 40000, 2**20])
@pytest.mark.parametrize("S", [1, 16, 17, 64])
def test_gradients(S: int, L: int, device: Device, seed: int, rng: torch.Generator) -> None:
    """One segment and several, and more poles than a block takes. Another call has the same bits."""
    device.skip_above(40000, L)
    residues, log_poles, _ = modal_parameters(2, 2, S, seed, torch.float32)
    grad = torch.randn(2, L, generator=rng)
    expected = torch.ops.gdn_cuda.hyena_filter_backward(grad.double(), residues.double(), log_poles.double())
    leaves = [x.to(device.name).requires_grad_() for x in (residues, log_poles)]
    with device.kernels():
        h = hyena_filter(*leaves, L)
        found, again = (torch.autograd.grad(h, leaves, grad.to(device.name), retain_graph=True) for _ in range(2))
    for mine, other, same in zip(found, expected, again, strict=True):
        assert rel_rms(mine.cpu(), other) < device.size(5e-6, 1e-5) and torch.equal(mine, same)


def test_a_value_that_is_not_finite_stays_in_its_row(device: Device) -> None:
    residues, log_poles = torch.ones(3, 4), torch.full((3, 4), -0.5)
    residues[1, 2] = torch.nan
    h = forward(device, residues, log_poles, 300)
    assert h[1].isnan().all() and h[[0, 2]].isfinite().all()
