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
from gdn_cuda.ssd import scan as scan_module

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
    x = scan("ssd_scan", False)
    assert dispatched(gdn_cuda.ssd_scan, **x | {"return_last_state": True}) == ["gdn_cuda::ssd_scan"]
    assert dispatched(gdn_cuda.ssd_scan, **x | {"return_last_state": False}) == [*NEW, "gdn_cuda::ssd_scan_into"]


POOL_OPTIONS = ("state_indices", "write_indices", "state_scales", "update_state")


@pytest.mark.parametrize(
    "schema, leaves_out",
    [
        ("_into_schema", POOL_OPTIONS[:1] + POOL_OPTIONS[2:]),
        ("_pool_schema", ("last_state", "seq_idx")),
        ("operator", (*POOL_OPTIONS, "last_state", "out")),
    ],
)
def test_the_order_of_arguments(schema: str, leaves_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option reaches the operator's argument of its name: a call of the schema's order is written by hand."""
    found = scan_module.ssd_scan_operator.schema if schema == "operator" else getattr(scan_module, schema)
    rows = torch.zeros(2, 3, 2, 8)
    given: dict[str, Any] = {
        name: rows.clone()
        for name in (
            "x",
            "dt",
            "A",
            "B",
            "C",
            "D",
            "z",
            "dt_bias",
            "initial_state",
            "cu_seqlens",
            "seq_idx",
            "state_indices",
            "has_initial_state",
            "write_indices",
            "state_scales",
            "last_state",
            "out",
        )
        if name not in leaves_out
    }
    options = {"dt_softplus": True, "dt_limit": (0.25, 0.5), "deterministic": True, "return_last_state": True}
    seen: list[tuple[Any, ...]] = []

    def record(*args: Any) -> tuple[Tensor, Tensor]:
        seen.append(args)
        return rows, rows

    if schema == "operator":
        monkeypatch.setattr(scan_module.ssd_scan_operator, "below_autograd", record)
    else:
        monkeypatch.setitem(found.__dict__, "direct", record)
    with torch.no_grad():
        gdn_cuda.ssd_scan(**given, **options)
    named = dict(zip(found.arguments, seen[0], strict=True))
    expected = given | {"dt_softplus": True, "dt_lowest": 0.25, "dt_highest": 0.5, "deterministic": True}
    assert {name for name, value in named.items() if value is not expected.get(name) and name in expected} == set()
    assert {name for name in named if name not in expected} <= {
        "checkpoint_every",
        "update_state",
        "checkpoint_offsets",
        "boundaries",
        "checkpoints",
        "states_before",
        "state_scales",
    }


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
