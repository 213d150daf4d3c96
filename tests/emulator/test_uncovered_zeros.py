"""Tokens of no packed sequence: the results of selective_scan and its gradients are 0 there, and others are written."""

from __future__ import annotations

from itertools import pairwise

import oracle
import pytest
import torch
from emulated import emulated, launched, library
from selective_inputs import selective_inputs
from selective_on_device import BOTH_LAYOUTS, ROWS, scan

TOKENS = 2500  # of 20 blocks
OFFSETS = (
    [0, TOKENS],
    [0, 2000],
    [7, 127, 129, 2048],
    [0, 3, 3, 1024, 1900, *range(1901, 2300)],  # more sequences than threads
    [2400, 1000, 1200],  # the first is empty
    [9000, -4, 9000, 100],
)


@pytest.mark.parametrize("offsets", OFFSETS)
@BOTH_LAYOUTS
def test_tokens_of_no_sequence(last: bool, offsets: list[int], seed: int) -> None:
    dim = 8 if seed % 2 else 5
    x = selective_inputs(seed, batch=1, dim=dim, length=TOKENS, N=2, cu_seqlens=offsets, dtype=torch.bfloat16, last=last)
    covered = torch.zeros(TOKENS, dtype=torch.bool)
    for first, end in pairwise(offsets):
        covered[min(max(first, 0), TOKENS) : min(max(end, first, 0), TOKENS)] = True
    before = library().emulator_launches()
    with emulated():
        out, state = scan(**x)
        found = oracle.gradients(scan, x, torch.ones_like(out), torch.ones_like(state))
    assert any(name.startswith("common/uncovered_zeros") for name in launched(before))
    for name, y in {"out": out, **{row: found[row] for row in ROWS}}.items():
        assert torch.isfinite(y).all() and not y[..., ~covered].any(), name
        assert y[..., covered].ne(0).float().mean() > 0.9 or not covered.any(), name
