"""Wrong input of causal_conv1d_update raises an error that names function, argument, expected and got, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_conv_oracle import draws
from torch import Tensor

from gdn_cuda import causal_conv1d_update

Change = Callable[[dict[str, Any]], dict[str, Any]]


def case() -> dict[str, Any]:
    """A call with as many arguments as possible: verify, two tokens."""
    x = draws(0, batch=3, tokens=2, columns=5, slots=6)
    return x | {
        "conv_state_indices": torch.tensor([0, 4, 2]),
        "num_accepted_tokens": torch.tensor([1, 2, 0]),
        "out": torch.zeros(3, 20, 2),
    }


def packed_case() -> dict[str, Any]:
    return draws(0, batch=6, columns=5) | {"cu_seqlens": torch.tensor([0, 2, 6]), "out": torch.zeros(6, 20)}


def refused(x: dict[str, Any], argument: str, says: str = "") -> None:
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor) and y.device.type == "cpu"}
    with pytest.raises(ValueError) as caught:
        causal_conv1d_update(**x)
    text = str(caught.value)
    assert re.fullmatch(rf"causal_conv1d_update: {argument}: expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for name, old in before.items():
        assert torch.equal(old, x[name]), f"{name} was written"


MAY_BE_SMALLER = {("conv_state", 0), ("conv_state", 2), ("weight", 1), ("cu_seqlens", 0)}


@pytest.mark.parametrize("make", [case, packed_case])
def test_every_tensor_of_another_size_dtype_rank_or_device(make: Callable[[], dict[str, Any]]) -> None:
    for name, y in make().items():
        if not isinstance(y, Tensor):
            continue
        wrong = {"double": y.double(), "rank": y[None, None, None], "device": y.to("meta")}
        for d in range(y.dim()):
            if (name, d) not in MAY_BE_SMALLER:
                wrong[f"size {d}"] = y.narrow(d, 0, y.shape[d] - 1)
        for what, bad in wrong.items():
            with pytest.raises(ValueError, match=r"^causal_conv1d_update: \w+: expected "):
                causal_conv1d_update(**make() | {name: bad})
                pytest.fail(f"{name}, {what}: accepted")


WRONG: dict[str, tuple[str, Change, str]] = {
    "no x": ("x", lambda x: {"x": None, "out": None}, "a tensor"),
    "a number as state": ("conv_state", lambda x: {"conv_state": 3}, "a tensor"),
    "an unknown activation": ("activation", lambda x: {"activation": "gelu"}, "None, 'silu' or 'swish'"),
    "W of 0": ("weight", lambda x: {"weight": torch.zeros(20, 0)}, "W from 1 to 32"),
    "W of 33": ("weight", lambda x: {"weight": torch.zeros(20, 33), "conv_state": torch.zeros(6, 20, 40)}, "W from 1 to 32"),
    "a state without room for the inputs": ("conv_state", lambda x: {"conv_state": torch.zeros(6, 20, 2)}, "W - 1 = 3"),
    "a state without room for verify": ("conv_state", lambda x: {"conv_state": torch.zeros(6, 20, 3)}, "W - 2 + T = 4"),
    "an expanded state": ("conv_state", lambda x: {"conv_state": torch.zeros(1, 20, 5).expand(6, 20, 5)}, "overlaps itself"),
    "both windows": ("num_accepted_tokens", lambda x: {"cache_seqlens": torch.zeros(3, dtype=torch.int32)}, "as cache_seqlens"),
    "indices of two ranks": (
        "conv_state_indices",
        lambda x: {"conv_state_indices": torch.zeros(3, 2, dtype=torch.int64)},
        "rank 1",
    ),
    "too few states": ("conv_state", lambda x: {"conv_state_indices": None, "conv_state": x["conv_state"][:2]}, "is None"),
    "a negative null slot": ("null_slot", lambda x: {"null_slot": -1}, "a slot number, or None"),
    "an output of another dtype": ("out", lambda x: {"out": x["out"].bfloat16()}, "float32"),
    "an expanded output": ("out", lambda x: {"out": torch.zeros(1).expand(3, 20, 2)}, "overlaps itself"),
    "an output over a part of x": (
        "out",
        lambda x: {"x": (m := torch.zeros(130))[:120].view(3, 20, 2), "out": m[10:].view(3, 20, 2)},
        "that of x",
    ),
    "an output over x transposed": (
        "out",
        lambda x: {"x": (m := torch.zeros(3, 20, 2)), "out": m.view(3, 2, 20).mT},
        "that of x",
    ),
    "an output over the state": ("out", lambda x: {"out": x["conv_state"][:3, :, :2]}, "that of conv_state"),
    "a state over x": ("conv_state", lambda x: {"x": x["conv_state"][:3, :, :2]}, "that of x"),
    "a state over the weight": ("conv_state", lambda x: {"weight": x["conv_state"][0, :, :4]}, "that of weight"),
    "offsets and a batch": ("x", lambda x: {"cu_seqlens": torch.tensor([0, 2, 2, 2])}, "(1, D, tokens)"),
}
PACKED_WRONG: dict[str, tuple[str, Change, str]] = {
    "offsets that decrease": ("cu_seqlens", lambda x: {"cu_seqlens": torch.tensor([0, 4, 3])}, "never decrease"),
    "offsets past the tokens": ("cu_seqlens", lambda x: {"cu_seqlens": torch.tensor([0, 4, 7])}, "end by 6"),
    "no offsets": ("cu_seqlens", lambda x: {"cu_seqlens": torch.tensor([], dtype=torch.int32)}, "at least one element"),
    "an index of each token": (
        "conv_state_indices",
        lambda x: {"conv_state_indices": torch.arange(6)},
        "a row for each sequence",
    ),
    "positions of each token": ("cache_seqlens", lambda x: {"cache_seqlens": torch.arange(6)}, "(sequences,)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what: str) -> None:
    argument, change, says = WRONG[what]
    x = case()
    refused(x | change(x), argument, says)


@pytest.mark.parametrize("what", PACKED_WRONG)
def test_wrong_arguments_of_packed_sequences(what: str) -> None:
    argument, change, says = PACKED_WRONG[what]
    x = packed_case()
    refused(x | change(x), argument, says)


def test_a_circular_state_without_columns() -> None:
    x = draws(0, W=1, columns=0) | {"cache_seqlens": torch.zeros(3, dtype=torch.int64)}
    refused(x, "conv_state", "a column or more")
