"""The C++ API of conv_split_l2norm, callable from here: split_api.cpp built as a program's library would be."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import torch
from split_cases import inputs, with_pool

import gdn_cuda


def check(folder: Path, device: str, seed: int) -> None:
    """Results are those of Python."""
    api = cpp_api.load(Path(__file__).with_name("split_api.cpp"), folder)
    x = inputs(2, 9, (2, 3, 4, 5), 4, seed, dtype=torch.bfloat16, device=device)
    for mine, theirs in zip(api.conv_split(x.x, x.weight, x.bias, *x.heads.values()), x.call(), strict=True):
        assert torch.equal(mine, theirs)
    with_pool(x, [1, -1], 2, seed, fresh=[])
    pool, slots = x.options["conv_state"].clone(), x.options["state_indices"]
    found = api.conv_split_prefill(x.x, x.weight, x.bias, pool, slots, *x.heads.values())
    expected = gdn_cuda.conv_split_l2norm(
        x.x, x.weight, x.bias, **x.heads, conv_state=x.options["conv_state"], state_indices=slots
    )
    for mine, theirs in zip((*found, pool), (*expected, x.options["conv_state"]), strict=True):
        assert torch.equal(mine, theirs)
