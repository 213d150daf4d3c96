"""States of int8 codes on the GPU: a part of the cases, as each kernel compiles for a second; the emulator runs all."""

from __future__ import annotations

import pytest
import state_codes_on_device as on_device
import torch
from devices import Device
from state_codes_on_device import (
    test_a_layers_step,  # noqa: F401
    test_a_tree,  # noqa: F401
    test_slots_with_gaps_between_them,  # noqa: F401
    test_states_at_the_ends_of_fp32,  # noqa: F401
    test_ties_go_to_even,  # noqa: F401
)

BF16 = torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_conversions(dtype: torch.dtype, device: Device, rng: torch.Generator) -> None:
    on_device.test_conversions(dtype, 96, device, rng)


@pytest.mark.parametrize("to", [torch.int8, torch.float32])
def test_slots(to: torch.dtype, device: Device, rng: torch.Generator) -> None:
    on_device.test_slots(True, to, device, rng)


@pytest.mark.parametrize("dk, channels", [(64, True), (128, False), (128, True), (192, False), (256, False)])
def test_a_token(dk: int, channels: bool, device: Device, rng: torch.Generator) -> None:
    on_device.test_a_token(dk, channels, device, rng)


@pytest.mark.parametrize("dk, channels", [(64, False), (128, True), (192, False)])
def test_slots_for_every_token(dk: int, channels: bool, device: Device, rng: torch.Generator) -> None:
    on_device.test_slots_for_every_token(dk, channels, device, rng)


def test_states_after_every_token_beside_the_pool(device: Device, rng: torch.Generator) -> None:
    on_device.test_states_after_every_token_beside_the_pool(18, "gdn/recurrent", device, rng)


@pytest.mark.parametrize("dk", [32, 256])
def test_packed_sequences(dk: int, device: Device, rng: torch.Generator) -> None:
    on_device.test_packed_sequences(BF16, False, dk, device, rng)


def test_float32_rows_and_more_queries_than_values(device: Device, rng: torch.Generator) -> None:
    on_device.test_float32_rows_and_more_queries_than_values(3, device, rng)


@pytest.mark.parametrize("tokens, kernel", [(1, "gdn/decode"), (3, "gdn/verify")])
def test_hostile_states_and_slots(tokens: int, kernel: str, device: Device, rng: torch.Generator) -> None:
    on_device.test_hostile_states_and_slots(tokens, kernel, device, rng)


def test_a_reset_clears_a_state_that_is_nan(device: Device, rng: torch.Generator) -> None:
    on_device.test_a_reset_clears_a_state_that_is_nan(True, device, rng)


def test_kernels_agree_bitwise(device: Device, rng: torch.Generator) -> None:
    on_device.test_kernels_agree_bitwise(device, rng)


def test_prefill_of_slots(device: Device, rng: torch.Generator) -> None:
    on_device.test_prefill_of_slots(False, BF16, device, rng)
