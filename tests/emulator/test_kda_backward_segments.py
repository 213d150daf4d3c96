"""Gradients with a gate for every channel of the key in the emulator, with the chains split into segments."""

import pytest
from devices import Device
from emulated import emulated
from kda_backward_segments_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
