"""causal_conv1d of the C++ API, callable from Python: causal_api.cpp, built like a program's library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from causal_cases import inputs

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("causal_api.cpp"), folder)


def check(api: Any, device: str, seed: int) -> None:
    """Results equal those of Python."""
    for layout in ("tokens", "channels"):
        x = inputs(1, 8, 40, 4, seed, device=device, layout=layout, bias=True, states=True, packed=[0, 2, 33])
        given = (x["x"], x["weight"], x["bias"], x["initial_states"], x["cu_seqlens"])
        expected = gdn_cuda.causal_conv1d(**x | {"activation": "silu"}, return_final_states=True)
        found = api.causal_conv1d(*given)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)) and found[0].stride() == x["x"].stride()
        slots, has_initial = (torch.tensor(y, device=device, dtype=torch.int32) for y in ([2, 0], [1, 0]))
        mine, theirs = (torch.ones(3, 8, 3, device=device) for _ in range(2))
        out = api.causal_conv1d_prefill(x["x"], x["weight"], mine, slots, has_initial, x["cu_seqlens"])
        wanted = gdn_cuda.causal_conv1d(
            *(x["x"], x["weight"]),
            cu_seqlens=x["cu_seqlens"],
            conv_state=theirs,
            state_indices=slots,
            has_initial_state=has_initial,
        )
        assert torch.equal(out, wanted) and torch.equal(mine, theirs)
