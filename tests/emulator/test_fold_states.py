"""fold_states in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from fold_states_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
