"""scan/selective_lanes in segments that blocks take in turn."""

import pytest
from selective_checks import check
from selective_lanes_on_device import plain
from emulated import EMULATOR


@pytest.mark.parametrize("index", [0, 3, 5])
@pytest.mark.parametrize("N, length", [(16, 264), (33, 776)])
def test_turns(index: int, N: int, length: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("GDN_X_LANES", str(index))
    monkeypatch.setenv("GDN_X_LTURNS", "3")
    dim = 300 if index == 0 else 90
    check(plain(EMULATOR, seed, batch=1, dim=dim, N=N, length=length), seed, 1)
