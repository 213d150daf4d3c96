"""Wrong input of gdn_decode_layer raises an error that names function, argument, expected and got, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gdn_cuda import gdn_decode_layer
from gdn_cuda.layers.decode_layer import layer_arguments

Change = Callable[[dict[str, Any]], dict[str, Any]]


def case(layout: str = "qwen3_next") -> dict[str, Any]:
    """A call with as many optional arguments as possible: three tokens of verify."""
    x = layer_arguments(2, 3, 0, layout, slots=8, columns=5)
    more = {"state_indices": torch.arange(6).view(2, 3), "num_accepted_tokens": torch.tensor([1, 3])}
    return x | more | {"out": torch.zeros(2, 3, 16, dtype=torch.bfloat16)}


def steps() -> dict[str, Any]:
    rows = {
        "step_states": torch.zeros(4, 3, 2, 8, 64),
        "step_conv": torch.zeros(4, 3, 144, 3),
        "step_slots": torch.tensor([1, 3]),
    }
    return layer_arguments(2, 3, 0, "split") | rows


def refused(x: dict[str, Any], argument: str, says: str = "", error: type[Exception] = ValueError) -> None:
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor) and y.device.type == "cpu"}
    with pytest.raises(error) as caught:
        gdn_decode_layer(**x)
    text = str(caught.value)
    assert re.fullmatch(rf"gdn_decode_layer: (?:{argument}): expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for name, old in before.items():
        assert torch.equal(old.nan_to_num(), x[name].nan_to_num()), f"{name} was written"


TENSORS = [(make, name) for make in (case, steps) for name, y in make().items() if isinstance(y, Tensor)]
MAY_BE_LARGER = {("conv_pool", 2), ("step_states", 1), ("step_conv", 1), ("state_indices", 1)}  # larger than necessary is valid


@pytest.mark.parametrize("make, name", TENSORS)
def test_every_tensor_of_another_size_rank_device_or_dtype(make: Callable[[], dict[str, Any]], name: str) -> None:
    given = make()[name]
    for d in range(given.dim()):
        smaller, x = given.narrow(d, 0, given.shape[d] - 1), make()
        with pytest.raises(ValueError, match=r"gdn_decode_layer: \w+: expected .+, got"):
            gdn_decode_layer(**x | {name: smaller})
        if (name, d) not in MAY_BE_LARGER:
            larger = torch.cat([given, given.narrow(d, 0, 1)], d)
            with pytest.raises(ValueError, match=r"gdn_decode_layer: \w+: expected .+, got"):
                gdn_decode_layer(**x | {name: larger})
    refused(make() | {name: given.unsqueeze(0)}, r"\w+")
    refused(make() | {name: given.to("meta")}, r"\w+")
    for dtype in (torch.float64, torch.bool, torch.complex64):
        refused(make() | {name: given.to(dtype)}, "out|qkvz|z" if name == "qkvz" else name)


VALUES: list[tuple[str, Change, str, str]] = [
    ("heads", lambda x: {"heads": (2, 3)}, "heads", "a multiple of the 2 key heads"),
    ("no heads", lambda x: {"heads": (0, 2)}, "heads", "a number of key heads"),
    ("one number of heads", lambda x: {"heads": 2}, "heads", "(Hk, Hv)"),
    ("dk", lambda x: {"dk": 80}, "dk", "64, 96, 128, 192 or 256"),
    ("dv", lambda x: {"dv": 12}, "dv", "a multiple of 8 up to 256"),
    ("a large dv", lambda x: {"dv": 264}, "dv", "a multiple of 8 up to 256"),
    ("layout", lambda x: {"layout": "qwen2"}, "layout", "'qwen2'"),
    ("activation", lambda x: {"activation": "gelu"}, "activation", "'gelu'"),
    ("gate_activation", lambda x: {"gate_activation": "tanh"}, "gate_activation", "'tanh'"),
    ("norm_eps", lambda x: {"norm_eps": -1e-6}, "norm_eps", "not negative"),
    ("scale", lambda x: {"scale": float("inf")}, "scale", "finite"),
    ("null_slot", lambda x: {"null_slot": -1}, "null_slot", "a slot number"),
    ("z", lambda x: {"z": x["qkvz"]}, "z", "None"),
    ("a", lambda x: {"a": x["ba"]}, "a", "None"),
    ("tokens", lambda x: {"qkvz": torch.zeros(2, 17, 160).bfloat16()}, "qkvz", "at most 16 tokens"),
    ("accepted alone", lambda x: {"state_indices": torch.arange(2)}, "num_accepted_tokens", "rank-2 state_indices"),
    ("columns", lambda x: {"conv_pool": x["conv_pool"][..., :4]}, "conv_pool", "5 columns or more"),
    ("rows that are not contiguous", lambda x: {"qkvz": x["qkvz"].mT.contiguous().mT}, "qkvz", "contiguous"),
    ("an unaligned pool", lambda x: {"state_pool": torch.zeros(8 * 1024 + 1)[1:].view(8, 2, 8, 64)}, "state_pool", "16 bytes"),
    ("a transposed pool", lambda x: {"state_pool": x["state_pool"].mT.contiguous().mT}, "state_pool", "contiguous"),
    ("a pool on itself", lambda x: {"state_pool": x["state_pool"][:1].expand(8, 2, 8, 64)}, "state_pool", ""),
    ("out in a pool", lambda x: {"conv_pool": x["qkvz"].flatten()[:720].view(1, 144, 5).expand(8, 144, 5)}, "conv_pool", ""),
    ("out among inputs", lambda x: {"out": x["qkvz"][..., :16]}, "out|qkvz", ""),
]


@pytest.mark.parametrize("change, argument, says", [row[1:] for row in VALUES], ids=[row[0] for row in VALUES])
def test_wrong_values(change: Change, argument: str, says: str) -> None:
    x = case()
    refused(x | change(x), argument, says)


def test_parts_of_a_split_layout() -> None:
    for name in ("z", "a"):
        x = case("split")
        del x[name]
        refused(x, name, "a tensor")


def test_step_states_and_step_conv_require_each_other() -> None:
    for name in ("step_states", "step_conv", "step_slots"):
        x = steps()
        del x[name]
        refused(x, r"step_\w+")


@pytest.mark.parametrize("name, value", [("state_indices", 8), ("num_accepted_tokens", 4), ("step_slots", 4)])
def test_indices_past_the_end(name: str, value: int) -> None:
    x = steps() if name == "step_slots" else case()
    x[name].view(-1)[-1] = value
    refused(x, name, error=IndexError)


def test_an_argument_that_is_not_a_tensor() -> None:
    for name in ("qkvz", "ba", "conv_weight", "A_log", "state_pool", "conv_pool", "norm_weight", "dt_bias"):
        for wrong in (None, 3, "x"):
            refused(case() | {name: wrong}, name, "a tensor")
