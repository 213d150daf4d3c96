"""gdn/kda_gradients alone in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from kda_gradients_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
