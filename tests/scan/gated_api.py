"""The C++ API of RG-LRU's and S7's scans, callable from here: scan_api.cpp built as a program's library would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from rglru_cases import inputs

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("scan_api.cpp"), folder)


def check(api: Any, device: str, seed: int) -> None:
    """Results equal those of Python."""
    for channels_last in (False, True):
        x = inputs(
            2, 5, 9, 2, seed, device=device, channels_last=channels_last, initial=True, resets=True, first_multiplier=True
        )
        initial, reset = x.options["initial_state"], x.options["reset"]
        expected = gdn_cuda.rglru_scan(x.u, x.delta, x.A, True, **x.options)
        found = api.rglru_scan(x.u, x.delta, x.A, initial, reset.int(), True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)) and found[0].stride() == x.u.stride()
    shapes = (2, 3, 9), (2, 4, 9), (2, 4, 3, 9), (2, 3, 4, 9), (2, 4, 9)
    given = [torch.randn(shape, device=device) for shape in shapes]
    for bias in (given[4], None):
        expected = gdn_cuda.s7_scan(*given[:4], bias, True)
        assert all(torch.equal(a, b) for a, b in zip(api.s7_scan(*given[:4], bias), expected, strict=True))
