"""causal_conv1d_update of the C++ API, callable from Python, and the expected results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpp_api
import torch
from step_conv_oracle import draws

import gdn_cuda


def load(folder: Path) -> Any:
    return cpp_api.load(Path(__file__).with_name("step_conv_api.cpp"), folder)


def check(api: Any, device: str, seed: int) -> None:
    """Outputs, their layout, and states equal those of Python."""
    slots, accepted = torch.tensor([4, 0, 2], device=device), torch.tensor([1, 2, 0], device=device)
    for rows in (False, True):
        for verify in (None, accepted):
            for given in (False, True):
                x = draws(seed, tokens=2, columns=5, slots=5, rows=rows, bare=True, device=device)
                states = [x["conv_state"].clone() for _ in range(2)]
                out = torch.full_like(x["x"], torch.nan) if given else None
                ours = api.conv_step(x["x"], states[0], x["weight"], slots, verify, out)
                more = {"conv_state_indices": slots, "num_accepted_tokens": verify, "null_slot": 0}
                expected = gdn_cuda.causal_conv1d_update(x["x"], states[1], x["weight"], None, "silu", **more)
                assert torch.equal(ours, expected) and ours.stride() == expected.stride() and torch.equal(*states)
                assert not torch.equal(states[0], x["conv_state"]) and (out is None or out.data_ptr() == ours.data_ptr())
