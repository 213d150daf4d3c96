"""The kernels of hyena_long's gradients in the emulator; which configurations run."""

from __future__ import annotations

import pytest
import torch
from devices import Device
from emulated import emulated
from hyena_long_backward_on_device import *  # noqa: F403
from hyena_long_backward_on_device import check, states
from hyena_long_gradients import check_long_gradients


@pytest.mark.parametrize("L", [2049, 4608, 6144])
@pytest.mark.parametrize("S, dtype", [(16, torch.float32), (20, torch.bfloat16), (3, torch.float16)])
def test_channels_split_among_warps(L: int, S: int, dtype: torch.dtype, seed: int) -> None:
    with emulated() as launched:
        check_long_gradients(1, 2, L, S, seed, dtype, initial_state=states(1, 2, S, seed))
    assert sum("hyena_long_states" in kernel and "reversed = true" in kernel for kernel in launched()) == 1


@pytest.mark.parametrize("S, dtype", [(3, torch.bfloat16), (20, torch.float32), (20, torch.float16)])
def test_other_configurations_of_segments(S: int, dtype: torch.dtype, device: Device, seed: int) -> None:
    check(device, 1, 1, 2560, S, seed, dtype)
