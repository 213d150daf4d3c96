"""Backward of selective_scan in segments that blocks take in turn, in the emulator against the literal recurrence in fp64."""

from __future__ import annotations

import pytest
import torch
from selective_checks import check
from selective_inputs import selective_inputs
from selective_on_device import BOTH_LAYOUTS


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDN_SCAN_TURNS", "3")


@pytest.mark.parametrize("name, is_complex", [("mamba", False), ("mamba", True), ("zoh", True), ("rglru", False)])
@pytest.mark.parametrize("form", [{}, {"bare": True}, {"B": "constant"}])
@BOTH_LAYOUTS
def test_discretizations(name: str, is_complex: bool, form: dict[str, str | bool], last: bool, seed: int) -> None:
    check(selective_inputs(seed, name, is_complex=is_complex, last=last, batch=4, dim=37, N=16, length=201, **form), seed, 1)


@pytest.mark.parametrize("N", [16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@BOTH_LAYOUTS
def test_states(N: int, dtype: torch.dtype, last: bool, seed: int) -> None:
    check(selective_inputs(seed, batch=4, dim=37, N=N, dtype=dtype, length=264, last=last), seed, 1)
