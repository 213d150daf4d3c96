"""gdn/decode_codes on the GPU: a part of decode_codes_on_device.py, as states of so many heads are large."""

from __future__ import annotations

import decode_codes_on_device as on_device
import pytest
import torch
from decode_codes_on_device import (
    test_hostile_states_and_slots,  # noqa: F401
    test_keys_of_any_size,  # noqa: F401
    test_parts_of_heads,  # noqa: F401
    test_refuses_no_alignment,  # noqa: F401
    test_saturates,  # noqa: F401
)
from devices import Device


@pytest.mark.parametrize("io, dv", [(torch.bfloat16, 128), (torch.float16, 16)])
def test_a_token(io: torch.dtype, dv: int, device: Device, rng: torch.Generator) -> None:
    on_device.test_a_token(io, dv, device, rng)
