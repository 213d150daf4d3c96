"""The chains of Kimi Delta Attention's backward in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from kda_chain_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
