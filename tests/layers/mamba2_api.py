"""The C++ API of mamba2_decode_layer, callable from here: mamba2_api.cpp built as in a program that uses the library."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import torch
from mamba2_oracle import draws

import gdn_cuda

POOLS = ("conv_pool", "state_pool")


def check(folder: Path, device: str, seed: int) -> None:
    """Results are those of Python."""
    api = cpp_api.load(Path(__file__).with_name("mamba2_api.cpp"), folder)
    x = draws(seed, device=device)
    for name in ("conv_bias", "D", "dt_bias", "z"):
        del x[name]
    y = x | {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}
    out = api.mamba2_decode_layer(*(y[name] for name in ("xBC", "dt", "conv_weight", "A", *POOLS, "state_indices")))
    assert torch.equal(out, gdn_cuda.mamba2_decode_layer(**x, dt_limit=(0.0, 0.5)))
    assert all(torch.equal(x[name], y[name]) for name in POOLS)
