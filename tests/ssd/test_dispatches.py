"""Warm calls without derivatives are one operator: each more of torch's costs the host 2 to 5 us a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import gdn_cuda
from gdn_cuda.operators import examples

EXAMPLES = examples.load()
NEW = ["aten::empty_like"]


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def dispatched(function: Callable[..., Any], **given: Any) -> list[str]:
    with torch.no_grad(), Dispatched() as mode:
        function(**given)
    return mode.names


def example(name: str) -> dict[str, Any]:
    return EXAMPLES[name].make(2, 70, 0)


def scan(name: str, flat: bool, **more: Any) -> dict[str, Any]:
    x = example(name) | more
    rows = ("x", "dt", "B", "C", "z")
    return {name: y[0] if flat and name in rows and isinstance(y, Tensor) else y for name, y in x.items()}


def test_padded() -> None:
    assert dispatched(gdn_cuda.ssd_scan, **scan("ssd_scan", False)) == ["gdn_cuda::ssd_scan"]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "name, operator",
    [("ssd_scan, pool", "gdn_cuda::ssd_scan_pool"), ("ssd_scan, last states in slots", "gdn_cuda::ssd_scan_into")],
)
def test_packed(name: str, operator: str, flat: bool) -> None:
    x = scan(name, flat)
    assert dispatched(gdn_cuda.ssd_scan, **x) == [*NEW, operator]
    assert dispatched(gdn_cuda.ssd_scan, **x, out=torch.empty_like(x["x"])) == [operator]


def test_a_last_state_of_another_dtype_is_written_by_the_operator() -> None:
    x = scan("ssd_scan, packed", True, return_last_state=True, state_dtype=torch.bfloat16)
    assert dispatched(gdn_cuda.ssd_scan, **x) == [*NEW, "aten::new_empty", "gdn_cuda::ssd_scan_into"]


@pytest.mark.parametrize(
    "name, function, rows",
    [
        ("ssd_replay_decode", gdn_cuda.ssd_replay_decode, "x"),
        ("selective_state_update-per-head", gdn_cuda.selective_state_update, "x"),
    ],
)
def test_steps(name: str, function: Callable[..., Any], rows: str) -> None:
    x = example(name)
    out = torch.empty_like(x[rows], memory_format=torch.contiguous_format)
    assert dispatched(function, **x | {"out": out}) == [f"gdn_cuda::{function.__name__}"]


def test_a_layers_step() -> None:
    x = example("mamba2_decode_layer")
    out = torch.empty(x["xBC"].shape[0], x["state_pool"].shape[1:3].numel(), dtype=x["xBC"].dtype)
    assert dispatched(gdn_cuda.mamba2_decode_layer, **x | {"out": out}) == ["gdn_cuda::mamba2_decode_layer"]
