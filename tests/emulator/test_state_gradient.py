"""The gradient of a state alone, by Hopper's kernels in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from state_gradient_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
