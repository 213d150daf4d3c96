"""Gradients of chunked_forward in the emulator, as GPUs before Hopper compute them."""

import pytest
from devices import Device
from emulated import emulated
from gradients_on_device import *  # noqa: F403


@pytest.fixture
def device() -> Device:
    return Device("cpu", lambda multiprocessors: emulated(multiprocessors, shared_bytes=163 << 10, capability=80))
