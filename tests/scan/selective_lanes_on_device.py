"""scan/selective_lanes, which spreads tokens over lanes, against the literal recurrence in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from devices import Device
from selective_inputs import equal_steps, model_inputs
from selective_on_device import check, check_forward, inputs

import gdn_cuda


def plain(device: Device, seed: int, **form: Any) -> dict[str, Any]:
    x = inputs(device, seed, **{"dim": 19, "N": 16, "length": 200, "dtype": torch.bfloat16} | form)
    x.pop("delta_a", None)
    return x


@pytest.mark.parametrize("length", [8, 16, 64, 120, 128, 136, 264, 520, 2048])
def test_lengths(length: int, device: Device, seed: int) -> None:
    device.skip_above(264, length)
    check(device, plain(device, seed, length=length), seed)


@pytest.mark.parametrize("N", [1, 7, 16, 17, 33, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_states(dtype: torch.dtype, N: int, device: Device, seed: int) -> None:
    check(device, plain(device, seed, N=N, dtype=dtype, dim=9), seed)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", ["mamba", "dirac"])
def test_forms(name: str, bare: bool, groups: int, device: Device, seed: int) -> None:
    check(device, plain(device, seed, discretization=name, bare=bare, groups=groups, dim=15), seed)


@pytest.mark.parametrize("rate", [1e-6, 1e-3])
def test_equal_steps(rate: float, device: Device, seed: int) -> None:
    length = device.size(520, 16384)
    check_forward(device, equal_steps(plain(device, seed, batch=1, dim=3, N=3, length=length, bare=True), rate))


@pytest.mark.parametrize("dim, N", [(20, 16), (40, 33), (40, 64)])
def test_more_channels(dim: int, N: int, device: Device, seed: int) -> None:
    """16 lanes a channel, and 8. The emulator has one multiprocessor."""
    channels = device.size(dim, 100 * dim)
    with torch.no_grad(), device.only("scan/selective_lanes", multiprocessors=1):
        gdn_cuda.selective_scan(**plain(device, seed, batch=1, dim=channels, N=N, length=8))
    for length in (136, 264):
        check(device, plain(device, seed, batch=1, dim=channels, N=N, length=length), seed, multiprocessors=1)


def test_a_layer_at_initialisation(device: Device, seed: int) -> None:
    check(device, model_inputs(seed, 2, 40, 264, 16, device=device.name), seed)
