"""Summaries of hyena_long on the GPU."""

import pytest
import torch
from devices import Device
from hyena_long_summary_on_device import *  # noqa: F403
from hyena_long_summary_on_device import check, inputs


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_many_channels(layout: str, device: Device, seed: int) -> None:
    check(device, inputs(device, 1, 2048, 20000, 16, seed, torch.bfloat16, layout))
