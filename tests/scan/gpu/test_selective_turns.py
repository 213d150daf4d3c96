"""Gradients of selective_scan in segments that blocks take in turn: more blocks than an H200 runs together."""

from __future__ import annotations

import pytest
import torch
from devices import GPU
from selective_on_device import check, inputs


@pytest.mark.parametrize("is_complex, dim, N", [(False, 3200, 16), (False, 1600, 64), (True, 1600, 16)])
def test_turns(is_complex: bool, dim: int, N: int, seed: int) -> None:
    x = inputs(GPU, seed, "mamba", is_complex=is_complex, batch=5, dim=dim, N=N, length=264, dtype=torch.bfloat16)
    check(GPU, x, seed)
