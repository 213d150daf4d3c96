"""Inputs and the comparison for the emulator's tests of selective_scan."""

from __future__ import annotations

from typing import Any

import oracle
import pytest
from emulated import emulated
from oracle import DISCRETIZATIONS, REAL_ONLY, within
from selective_inputs import Draw, selective_inputs
from torch import Tensor

import gdn_cuda

BOUND = 1e-5
CASES = [(name, False) for name in DISCRETIZATIONS] + [(name, True) for name in DISCRETIZATIONS if name not in REAL_ONLY]
EVERY_DISCRETIZATION = pytest.mark.parametrize("name, is_complex", CASES, ids=[f"{n}-complex" if c else n for n, c in CASES])
BOTH_LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["tokens", "channels"])
# With one multiprocessor, heuristics choose as for many channels.
FEW_AND_MANY = pytest.mark.parametrize("multiprocessors", [132, 1], ids=["few", "many"])
ROWS = ("u", "delta", "z", "delta_a")


def scan(**x: Any) -> tuple[Tensor, Tensor]:
    return gdn_cuda.selective_scan(**x, return_last_state=True)


def plain_inputs(seed: int, *args: Any, length: int = 136, N: int = 16, **kwargs: Any) -> dict[str, Any]:
    """Aligned and without delta_a: only the last tile and the last channels are partial."""
    x = selective_inputs(seed, *args, batch=1, dim=40, length=length, N=N, **kwargs)
    x.pop("delta_a", None)
    return x


def weights(results: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor]:
    draw = Draw(seed + 1)
    out, last = results
    return draw.normal(*out.shape, dtype=out.dtype), draw.normal(*last.shape, dtype=last.dtype)


def check(x: dict[str, Any], seed: int, multiprocessors: int = 132) -> None:
    expected = oracle.selective_scan(**x)
    grads = weights((expected[0].to(x["u"].dtype), expected[1].to(x["A"].dtype)), seed)
    wanted = oracle.gradients(oracle.selective_scan, x, *grads)
    with emulated(multiprocessors):
        results = scan(**x)
        found = oracle.gradients(scan, x, *grads)
    for mine, theirs in zip(results, expected, strict=True):
        assert within(mine, theirs, BOUND)
    for argument, gradient in found.items():
        assert within(gradient, wanted[argument], BOUND), argument
