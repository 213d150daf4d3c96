"""scan/selective_step_codes on the GPU: a part of code_steps_on_device.py, as states of so many heads are large."""

from __future__ import annotations

import code_steps_on_device as on_device
import pytest
import torch
from code_steps_on_device import (
    test_hostile_states,  # noqa: F401
    test_many_tokens_are_close_to_float32_states,  # noqa: F401
    test_slots,  # noqa: F401
    test_what_others_take,  # noqa: F401
)
from devices import Device


@pytest.mark.parametrize("io, dim", [(torch.bfloat16, 64), (torch.float16, 16)])
def test_a_token(io: torch.dtype, dim: int, device: Device, seed: int) -> None:
    on_device.test_a_token(io, dim, device, seed)
