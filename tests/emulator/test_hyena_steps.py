"""The kernels of Hyena's steps in the emulator; which of them run."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from devices import Device
from hyena_step_cases import check, fir_inputs
from hyena_steps_on_device import *  # noqa: F403
from hyena_steps_on_device import DTYPES

from gdn_cuda import hyena_fir_step


@pytest.mark.parametrize("D", [4, 8, 20, 300])
def test_states_in_whole_units_are_staged(D: int, device: Device, seed: int) -> None:
    for K, T, io in product((2, 4, 30, 128) if D < 300 else (4, 7, 97), (None, 11), DTYPES if D == 20 else DTYPES[:1]):
        x = fir_inputs(seed, B=4, D=D, K=K, T=T, io=io, slots=5, groups=D // 4)
        x["state_indices"] = torch.tensor([4, -1, 0, 9])
        with device.only("conv/hyena_fir_step_staged"):
            check(x, hyena_fir_step)
