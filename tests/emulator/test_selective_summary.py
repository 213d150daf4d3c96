"""Summaries of selective scans in the emulator, of two segments and of seven."""

import pytest
from summaries_on_device import *  # noqa: F403


@pytest.fixture(autouse=True, params=["2", "7"])
def segments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SCAN_PIECES", request.param)
