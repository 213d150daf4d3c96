"""The kernels of scans' steps in the emulator; one and many sequences per block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from step_cases import COMPLEX, REAL, draws
from steps_on_device import *  # noqa: F403
from steps_on_device import EVERY_STATE


@EVERY_STATE
@pytest.mark.parametrize("N", [4, 16, 40, 64, 128, 256])
def test_blocks_of_many_sequences(N: int, state: torch.dtype, step: Any, seed: int) -> None:
    for name in COMPLEX if state.is_complex else REAL:
        x = draws(seed, name, batch=40, dim=6, N=N, state=state, io=torch.bfloat16)
        if name == "mamba":
            del x["delta_a"]
        step(**x)
