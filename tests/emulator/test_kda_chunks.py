"""Kimi Delta Attention by chunks in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from kda_chunks_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", emulated)
