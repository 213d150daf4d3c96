"""selective_scan of the C++ API, callable from here: scan_api.cpp built as a program's library would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from selective_inputs import selective_inputs

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("scan_api.cpp"), folder)


def check(api: Any, device: str, seed: int) -> None:
    """Results equal those of Python: in both layouts, packed, and with conjugate views."""
    for last in (False, True):
        x = selective_inputs(seed, bare=True, batch=1, cu_seqlens=[0, 30, 70], last=last, device=device)
        out, state = api.scan_of_mamba(x["u"], x["delta"], x["A"], x["B"], x["C"], x["u"], x["cu_seqlens"])
        expected, expected_state = gdn_cuda.selective_scan(**x, z=x["u"], return_last_state=True)
        assert torch.equal(out, expected) and torch.equal(state, expected_state) and out.stride() == expected.stride()
    x = selective_inputs(seed, "zoh", is_complex=True, bare=True, device=device)
    x |= {"initial_state": torch.randn_like(x["A"]).expand(2, 4, 3), "delta_softplus": True}
    for name in ("A", "B", "C", "initial_state"):
        given = x | {name: x[name].conj()}
        out, state = api.scan_by_zoh(*(given[k] for k in ("u", "delta", "A", "B", "C", "initial_state")))
        expected, expected_state = gdn_cuda.selective_scan(**given, return_last_state=True)
        assert torch.equal(out, expected) and torch.equal(state, expected_state), name
