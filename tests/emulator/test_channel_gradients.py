"""Gradients with a gate for every channel of the key in the emulator."""

import pytest
from channel_gradients_on_device import *  # noqa: F403
from devices import Device
from emulated import emulated


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
