"""The kernel of hyena_long in the emulator; which configurations run, for a device and by its shared memory."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from emulated import emulated
from hyena_long_checks import check_long
from hyena_long_on_device import *  # noqa: F403
from hyena_long_on_device import DTYPES, check, states


@pytest.mark.parametrize("L", [2049, 4608])
@pytest.mark.parametrize("S, dtype", [(16, torch.float32), (20, torch.bfloat16), (3, torch.float16)])
def test_channels_split_among_warps(L: int, S: int, dtype: torch.dtype, seed: int) -> None:
    with emulated() as launched:
        check_long(1, 2, L, S, seed, dtype, initial_state=states(1, 2, S, seed))
    assert sum("only_states = true" in kernel for kernel in launched()) == 1


@pytest.mark.parametrize("S, dtype", [(3, torch.bfloat16), (20, torch.float32), (20, torch.float16)])
def test_other_configurations_of_segments(S: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    check(device, 1, 1, 2560, S, seed, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared_bytes, sectors", [(227 << 10, "true"), (99 << 10, "false")])
def test_channels_by_shared_memory(dtype: torch.dtype, shared_bytes: int, sectors: str, seed: int) -> None:
    with emulated(shared_bytes=shared_bytes) as launched:
        check_long(1, 16, 2100, 16, seed, dtype, "channels")
    kernels = launched()
    assert len(kernels) == 2  # states of segments, and outputs
    assert all("columns = true" in kernel and f"sectors = {sectors}" in kernel for kernel in kernels)
