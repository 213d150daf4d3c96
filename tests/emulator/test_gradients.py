"""Gradients of chunked_forward in the emulator, by the kernels of Hopper and of GPUs before it."""

import pytest
from devices import Device
from emulated import emulated
from gradients_on_device import *  # noqa: F403


@pytest.fixture(params=[90, 80], ids=["hopper", "ampere"])
def device(request: pytest.FixtureRequest) -> Device:
    traits = {"capability": 80, "shared_bytes": 163 << 10} if request.param == 80 else {}
    return Device("cpu", lambda multiprocessors: emulated(multiprocessors, **traits))
