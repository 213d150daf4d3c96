"""scan/selective_lanes in segments that blocks take in turn, in the emulator against the literal recurrence in fp64."""

from __future__ import annotations

import pytest
import torch
from emulated import EMULATOR, emulated, launched, library
from selective_checks import check
from selective_lanes_on_device import plain
from selective_on_device import scan


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SCAN_TURNS", "3")


@pytest.mark.parametrize("dim, N", [(36, 16), (100, 33), (43, 5)])
@pytest.mark.parametrize("length", [264, 776, 1024])
def test_turns(dim: int, N: int, length: int, seed: int) -> None:
    check(plain(EMULATOR, seed, batch=1, dim=dim, N=N, length=length), seed, 1)


def test_the_same_bits_as_without(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    x = plain(EMULATOR, seed, batch=1, dim=36, N=16, length=1032)
    with torch.no_grad(), emulated(1):
        before = library().emulator_launches()
        found = scan(**x)
        assert any(kernel.startswith("scan/selective_lanes") for kernel in launched(before))
        monkeypatch.setenv("GDN_SCAN_TURNS", "1")
        wanted = scan(**x)
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine, theirs)
