"""The C++ API of conv_split_l2norm, callable from here: split_api.cpp built as in a program that uses the library."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import torch
from split_cases import GATES, inputs, with_gates, with_pool, with_states

import gdn_cuda


def check(folder: Path, device: str, seed: int) -> None:
    """Results are those of Python."""
    api = cpp_api.load(Path(__file__).with_name("split_api.cpp"), folder)
    x = inputs(2, 9, (2, 3, 4, 5), 4, seed, dtype=torch.bfloat16, device=device)
    *split, beta, gate = api.conv_split(x.x, x.weight, x.bias, None, None, None, None, None, *x.heads.values())
    assert beta.numel() == gate.numel() == 0
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(split, x.call(), strict=True))
    gated = with_states(with_gates(x, seed), seed)
    states = gated.options["initial_states"]
    found = api.conv_split(x.x, x.weight, x.bias, states, *(gated.options[name] for name in GATES), *x.heads.values())
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, gated.call(), strict=True))
    with_pool(x, [1, -1], 2, seed, fresh=[])
    pool, slots = x.options["conv_state"].clone(), x.options["state_indices"]
    *found, _, _ = api.conv_split_prefill(x.x, x.weight, x.bias, pool, slots, *x.heads.values())
    expected = gdn_cuda.conv_split_l2norm(
        x.x, x.weight, x.bias, **x.heads, conv_state=x.options["conv_state"], state_indices=slots
    )
    for mine, theirs in zip((*found, pool), (*expected, x.options["conv_state"]), strict=True):
        assert torch.equal(mine, theirs)
