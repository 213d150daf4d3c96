"""chunked_summary with a gate for every channel of the key in the emulator, by Hopper's kernels and by gdn/kda_mma."""

import functools

import pytest
from channel_summary_on_device import *  # noqa: F403
from devices import Device
from emulated import emulated
from kda_mma_on_device import ChunksByMma


@pytest.fixture(params=["Hopper", "sm_80"])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "Hopper":
        return Device("cpu", emulated)
    return ChunksByMma("cpu", functools.partial(emulated, shared_bytes=163 << 10, capability=80))
