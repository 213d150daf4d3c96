"""What the backward of Kimi Delta Attention prepares, in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from kda_training_records_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
