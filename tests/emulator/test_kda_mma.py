"""gdn/kda_mma in the emulator, as GPUs before Hopper run it."""

import functools

import pytest
from devices import Device
from emulated import emulated
from kda_mma_on_device import *  # noqa: F403
from kda_mma_on_device import ChunksByMma


@pytest.fixture
def device() -> Device:
    return ChunksByMma("cpu", functools.partial(emulated, shared_bytes=163 << 10, capability=80))
