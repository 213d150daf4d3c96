"""The C++ API of kda_decode_layer, callable from here: kda_api.cpp built as in a program that uses the library."""

from __future__ import annotations

from pathlib import Path

import cpp_api
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda.layers.kda_decode_layer import layer_arguments

POOLS = ("conv_pool", "state_pool")
NAMES = ("qkv", "a", "b", "conv_weight", "A_log", "dt_bias", "z", "norm_weight", *POOLS, "state_indices")


def check(folder: Path, device: str, seed: int) -> None:
    """Results are those of Python."""
    api = cpp_api.load(Path(__file__).with_name("kda_api.cpp"), folder)
    x = layer_arguments(2, seed) | {"state_indices": torch.tensor([3, 0])}
    x = {name: y.to(device) if isinstance(y, Tensor) else y for name, y in x.items() if name != "conv_bias"}
    x["state_pool"] = x["state_pool"].contiguous()
    y = x | {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}
    out = api.kda_decode_layer(*(y[name] for name in NAMES))
    assert torch.equal(out, gdn_cuda.kda_decode_layer(**x, lower_bound=-5.0))
    assert all(torch.equal(x[name], y[name]) for name in POOLS)
