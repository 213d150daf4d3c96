"""Gradients with a gate for every channel of the key on the GPU, with the chains split into segments, in other processes."""

from pathlib import Path

import pytest
from channel_gradient_cases import ChannelCase
from channel_gradients_on_device import check
from devices import Device
from gradient_cases import GradientCase
from kda_backward_segments_on_device import *  # noqa: F403
from kda_backward_segments_on_device import CHOSEN, COUNTS, VARIABLE
from other_kernels import check_with

ONLY_PARENT = pytest.mark.skipif(CHOSEN != "auto", reason="this is the child")


@ONLY_PARENT
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("file", ["test_kda_backward_segments.py", "test_channel_gradients.py"])
def test_all_tests_pass_with_segments(file: str, count: str) -> None:
    check_with(count, str(Path(__file__).with_name(file)), VARIABLE)


@ONLY_PARENT
@pytest.mark.parametrize("gates", ["init", "none", "heavy"])
def test_long_sequences_are_split(gates: str, device: Device, seed: int) -> None:
    check(device, ChannelCase(GradientCase(lengths=(4100,), heads=(1, 2), dk=128, dv=128), gates), seed)
