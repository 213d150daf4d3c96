"""Temporary: every variant that a measurement chooses from."""

from __future__ import annotations

import math

import pytest
import torch
from devices import Device
from selective_inputs import equal_steps, model_inputs
from selective_lanes_on_device import plain
from selective_on_device import check, check_forward, inputs, plain_inputs


@pytest.mark.parametrize("lanes", ["1", "2", "3", "4", "5", "6", "7", "8"])
def test_lanes(lanes: str, device: Device, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_TRY_LANES", lanes)
    check(device, plain(device, seed, length=device.size(136, 1032), groups=1), seed)
    check_forward(device, plain(device, seed, length=264, N=33, dtype=torch.float16))
    check_forward(device, model_inputs(seed, 2, 72, device.size(136, 1024), 16, device=device.name))
    check_forward(device, equal_steps(plain(device, seed, batch=1, dim=3, N=3, length=device.size(264, 16384), bare=True), 1e-5))


@pytest.mark.parametrize("length", [64, 200])
def test_backward(length: int, device: Device, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_TRY_LANES", "0")
    monkeypatch.setenv("GDN_TRY_BACKWARD", "1")
    check(device, plain(device, seed, length=device.size(length, 5 * length), dim=35), seed)
    check(device, model_inputs(seed, 2, 40, length, 16, device=device.name), seed)


@pytest.mark.parametrize("N", [3, 16, 17])
@pytest.mark.parametrize("last", [False, True])
def test_complex(last: bool, N: int, device: Device, seed: int) -> None:
    for length in (136, device.size(70, 1000)):
        check(device, plain_inputs(device, seed, is_complex=True, N=N, length=length, last=last, dtype=torch.bfloat16), seed)


@pytest.mark.parametrize("last", [False, True])
def test_complex_at_initialisation(last: bool, device: Device, seed: int) -> None:
    """Poles of S4D-Lin, whose memories are up to 2000 tokens long."""
    x = model_inputs(seed, 1, 32, device.size(136, 4096), 16, last=last, device=device.name)
    A = torch.complex(torch.full_like(x["A"], -0.5), -math.pi * (x["A"] + 1))
    for name in ("B", "C"):
        x[name] = torch.cat([x[name], x[name].flip(-1)], -1)
    check(device, x | {"A": A}, seed)
    check_forward(device, equal_steps(inputs(device, seed, is_complex=True, batch=1, dim=3, N=3, length=device.size(264, 16384), dtype=torch.bfloat16, bare=True), 1e-3))
