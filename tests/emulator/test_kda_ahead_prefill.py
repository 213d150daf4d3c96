"""All tests of Kimi Delta Attention's prefill in one launch, in the emulator."""

import pytest
from devices import Device
from emulated import emulated
from kda_chunks_on_device import *  # noqa: F403
from kda_prefill_on_device import *  # noqa: F403


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setenv("GDN_KDA_AHEAD", "1")
    return Device("cpu", emulated)
