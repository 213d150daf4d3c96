"""The kernels of hyena_filter in the emulator against its definition in fp64."""

from __future__ import annotations

import pytest
import torch
from emulated import emulated
from helpers import rel_rms
from hyena_cases import modal_parameters
from torch import Tensor

from gdn_cuda.conv.reference_hyena import modal_filter

_ops = torch.ops.gdn_cuda


def forward(residues: Tensor, log_poles: Tensor, L: int) -> Tensor:
    with emulated():
        return _ops.hyena_filter(residues, log_poles, L)


@pytest.mark.parametrize("L", [1, 31, 32, 255, 256, 257, 1023, 1025, 4096, 4097, 9001])
@pytest.mark.parametrize("S", [1, 5, 16, 64])
def test_filters(S: int, L: int, seed: int) -> None:
    residues, log_poles, _ = modal_parameters(3, 3, S, seed, torch.float32)
    expected = modal_filter(residues.double(), log_poles.double(), L)
    assert rel_rms(forward(residues, log_poles, L), expected) < 2e-6


@pytest.mark.parametrize("log_pole", [0.0, -1e-6, -1e-3, -0.1, -1.0, -50.0, -1000.0, -torch.inf])
def test_poles_at_the_limits_of_their_range(log_pole: float) -> None:
    h = forward(torch.ones(2, 1), torch.full((2, 1), log_pole), 5000)
    expected = modal_filter(torch.ones(2, 1).double(), torch.full((2, 1), log_pole).double(), 5000)
    assert rel_rms(h, expected) < 1e-6
    normal = expected > 1e-37
    assert (h[normal] / expected[normal] - 1).abs().max() < 2e-6


def test_no_filters() -> None:
    assert forward(torch.ones(0, 3), torch.ones(0, 3), 7).shape == (0, 7)
    assert forward(torch.ones(2, 3), torch.ones(2, 3), 0).shape == (2, 0)


@pytest.mark.parametrize("L", [0, 1, 33, 256, 5000, 16384, 16385, 40000])
@pytest.mark.parametrize("S", [1, 16, 17, 64])
def test_gradients(S: int, L: int, seed: int, rng: torch.Generator) -> None:
    """One segment and several, and more poles than a block takes."""
    residues, log_poles, _ = modal_parameters(2, 2, S, seed, torch.float32)
    grad = torch.randn(2, L, generator=rng)
    with emulated():
        found = _ops.hyena_filter_backward(grad, residues, log_poles)
    expected = _ops.hyena_filter_backward(grad.double(), residues.double(), log_poles.double())
    for mine, other in zip(found, expected, strict=True):
        assert rel_rms(mine, other) < 5e-6


def test_a_value_that_is_not_finite_stays_in_its_row() -> None:
    residues, log_poles = torch.ones(3, 4), torch.full((3, 4), -0.5)
    residues[1, 2] = torch.nan
    h = forward(residues, log_poles, 300)
    assert h[1].isnan().all() and h[[0, 2]].isfinite().all()
