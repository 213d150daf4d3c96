"""fold_states by its kernel, against products in fp64."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from helpers import rel_rms
from torch import Tensor

import gdn_cuda

BOUND = 1e-6


def drawn(parts: int, *leading: int, dv: int, dk: int, seed: int) -> tuple[Tensor, Tensor]:
    """A state, and summaries, L above M, of parts that keep about half of a state."""
    rng = torch.Generator().manual_seed(seed)
    state, additions, transitions = (
        torch.randn(*sizes, dk, generator=rng) for sizes in ((*leading, dv), (parts, *leading, dv), (parts, *leading, dk))
    )
    return state, torch.cat([additions, transitions / (2 * dk**0.5)], -2)


def folded(device: Device, state: Tensor, summaries: Tensor, reverse: bool = False) -> Tensor:
    dv, there = state.shape[-2], summaries.to(device.name)
    with device.only("gdn/fold_states"):
        return gdn_cuda.fold_states(state.to(device.name), there[..., :dv, :], there[..., dv:, :], reverse=reverse).cpu()


def exact(state: Tensor, summaries: Tensor, reverse: bool = False) -> Tensor:
    dv, found = state.shape[-2], state.double()
    for each in summaries.double().flip(0) if reverse else summaries.double():
        found = found @ (each[..., dv:, :].mT if reverse else each[..., dv:, :]) + each[..., :dv, :]
    return found


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("parts", [0, 1, 2, 7])
def test_parts_one_after_another(parts: int, reverse: bool, device: Device, seed: int) -> None:
    x = drawn(parts, 2, 3, dv=24, dk=64, seed=seed)
    found = folded(device, *x, reverse)
    assert torch.equal(found, x[0]) if parts == 0 else rel_rms(found, exact(*x, reverse)) < BOUND


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dk, dv", [(1, 1), (8, 7), (128, 128), (129, 9), (200, 8), (256, 256), (40, 72)])
def test_sizes(dk: int, dv: int, reverse: bool, device: Device, seed: int) -> None:
    x = drawn(2, 1, 2, dv=dv, dk=dk, seed=seed)
    assert rel_rms(folded(device, *x, reverse), exact(*x, reverse)) < BOUND


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_nothing_is_left_after_a_reset(poison: float, device: Device, seed: int) -> None:
    """In its head alone."""
    state, summaries = drawn(3, 1, 2, dv=16, dk=64, seed=seed)
    state[:] = poison
    summaries[1, :, 0, 16:] = 0
    found = folded(device, state, summaries)
    after = exact(torch.zeros(1, 2, 16, 64), summaries[1:])
    assert rel_rms(found[:, 0], after[:, 0]) < BOUND and not found[:, 1].isfinite().any()


def test_summaries_that_were_gathered(device: Device, seed: int) -> None:
    """Every second one of a tensor with others between."""
    state, summaries = drawn(6, 2, 2, dv=8, dk=16, seed=seed)
    strided = summaries[::2].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(folded(device, state, strided), folded(device, state, summaries[::2].contiguous()))
