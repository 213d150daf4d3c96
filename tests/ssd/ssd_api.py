"""The C++ API of Mamba-2's scan, callable from here: ssd_api.cpp built as a program's library would be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from torch import Tensor

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("ssd_api.cpp"), folder)


def inputs(device: str, B: int) -> tuple[Tensor, ...]:
    rng = torch.Generator().manual_seed(1)

    def rows(*sizes: int) -> Tensor:
        return torch.randn(B, 70, *sizes, generator=rng).to(device, torch.bfloat16)

    return rows(2, 64), rows(2), -torch.rand(2, generator=rng).to(device), rows(1, 64), rows(1, 64)


def _equal(found: Any, expected: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def check(api: Any, device: str) -> None:
    """Results equal those of Python."""
    options: dict[str, Any] = {"dt_softplus": True, "dt_limit": (0.0, 0.5), "return_last_state": True}
    x = inputs(device, 2)
    states = torch.randn(3, 2, 64, 64, device=device)
    expected = gdn_cuda.ssd_scan(*x, **options, initial_state=states[:2])
    assert _equal(api.ssd_scan(*x, states[:2], None), expected)
    last = torch.empty(2, 2, 64, 64, device=device, dtype=torch.float16)
    expected = gdn_cuda.ssd_scan(*x, **options, state_dtype=torch.float16)
    found, written = api.ssd_scan_into(*x, last)
    assert _equal((found, last), expected) and torch.equal(written, last)
    slots, pool, out = torch.tensor([2, 0], device=device), states.clone(), torch.empty_like(x[0])
    expected = gdn_cuda.ssd_scan(*x, **options, initial_state=pool, state_indices=slots)
    mine = states.clone()
    api.ssd_scan_pool(*x, mine, slots, out)
    assert _equal((out, mine), expected) and expected[1] is pool
    assert _equal(api.ssd_summary(*x[:4]), gdn_cuda.ssd_summary(*x[:4], dt_softplus=True))
    _check_replay(api, device)
    packed = inputs(device, 1)
    offsets = torch.tensor([0, 3, 3, 70], device=device)
    expected = gdn_cuda.ssd_scan(*packed, **options, initial_state=states, cu_seqlens=offsets)
    assert _equal(api.ssd_scan(*packed, states, offsets), expected)
    boundaries, rows = torch.tensor([0, 3, 40, 70], device=device), torch.empty(3, 2, 64, 64, device=device)
    out, _, checkpoints = gdn_cuda.ssd_scan(*packed, **options, cu_seqlens=offsets, boundaries=boundaries)
    assert _equal((api.ssd_scan_boundaries(*packed, offsets, boundaries, rows), rows), (out, checkpoints))


def _check_replay(api: Any, device: str) -> None:
    """Rings that become full: states are written too."""
    pools = [torch.ones(2, 2, 64, 64, device=device) for _ in range(2)]
    buffers = [gdn_cuda.ssd_replay_buffers(pool, 3, 1) for pool in pools]
    for accepted in (None, torch.tensor([0, 0], device=device), torch.tensor([2, 1], device=device)):
        for _ in range(3):
            x = [y[:, :2] if y.dim() > 1 else y for y in inputs(device, 2)]
            found = api.ssd_replay_decode(*x, pools[0], *buffers[0], accepted)
            options: dict[str, Any] = {"dt_softplus": True, "dt_limit": (0.0, 0.5), "num_accepted_tokens": accepted}
            expected = gdn_cuda.ssd_replay_decode(*x, pools[1], *buffers[1], **options)
            assert _equal((found, pools[0], *buffers[0]), (expected, pools[1], *buffers[1]))
    assert (pools[0] != 1).any()
