"""ssd/prefill_mma in the emulator, as GPUs other than Hopper run it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from devices import Device
from emulated import emulated
from ssd_on_device import BF16, F16, check, drawn


def on_a100(multiprocessors: int = 108) -> AbstractContextManager[Any]:
    return emulated(multiprocessors, 163 << 10, 80)


@pytest.fixture
def device() -> Device:
    return Device("cpu", on_a100)


@pytest.mark.parametrize("length", [1, 64, 65, 200])
@pytest.mark.parametrize("N", [64, 128])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_lengths(dtype: torch.dtype, N: int, length: int, device: Device, seed: int) -> None:
    check(device, drawn(device, seed, T=length, N=N, dtype=dtype))
