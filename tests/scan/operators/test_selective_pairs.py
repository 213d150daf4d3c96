"""B and C as (real, imaginary) pairs in any memory: odd strides and offsets, which torch.view_as_complex refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from selective_inputs import selective_inputs
from torch import Tensor

import gdn_cuda

MEMORY: dict[str, Callable[[Tensor], Tensor]] = {
    "an odd offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "rows of an odd size": lambda x: torch.cat([x, x[..., :1]], -1)[..., :-1],
    "every third element": lambda x: torch.stack([x, x, x], -1)[..., 1],
    "tokens first": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "expanded over tokens": lambda x: x[..., :1].expand_as(x),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY.keys())
def test_pairs_in_any_memory(memory: Callable[[Tensor], Tensor], groups: int | None, dtype: torch.dtype, seed: int) -> None:
    x = selective_inputs(seed, is_complex=True, in_pairs=True, groups=groups, dtype=dtype, wide_coefficients=True)
    given: dict[str, Any] = x | {name: memory(x[name]).requires_grad_() for name in ("B", "C")}
    dense = x | {
        name: given[name].detach().clone(memory_format=torch.contiguous_format).requires_grad_() for name in ("B", "C")
    }
    assert not any(given[name].is_contiguous() and given[name].storage_offset() % 2 == 0 for name in ("B", "C"))
    results = []
    for arguments in (given, dense):
        out = gdn_cuda.selective_scan(**arguments)
        results.append([out, *torch.autograd.grad(out, (arguments["B"], arguments["C"]), torch.ones_like(out))])
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
