"""Wrong input of kda_decode_layer raises an error that names function, argument, expected and got, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gdn_cuda
from gdn_cuda import kda_decode_layer
from gdn_cuda.layers.kda_decode_layer import by_operators, layer_arguments

Change = Callable[[dict[str, Any]], dict[str, Any]]


def case(separate: bool = False) -> dict[str, Any]:
    more = {"state_indices": torch.tensor([3, 1]), "lower_bound": -5.0, "out": torch.zeros(2, 16, dtype=torch.bfloat16)}
    return layer_arguments(2, 0, slots=6, separate=separate) | more


def refused(
    x: dict[str, Any],
    argument: str,
    says: str = "",
    error: type[Exception] = ValueError,
    function: Callable[..., Any] = kda_decode_layer,
) -> None:
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor) and y.device.type == "cpu"}
    with pytest.raises(error) as caught:
        function(**x)
    text = str(caught.value)
    name = "kda_decode_layer" if function is kda_decode_layer else r"\w+"
    assert re.fullmatch(rf"{name}: (?:{argument}): expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for name, old in before.items():
        assert torch.equal(old.nan_to_num(), x[name].nan_to_num()), f"{name} was written"


TENSORS = [(separate, name) for separate in (False, True) for name, y in case(separate).items() if isinstance(y, Tensor)]
MAY_BE_LARGER = {("conv_pool", 2)}  # larger than necessary is valid


@pytest.mark.parametrize("separate, name", TENSORS)
def test_every_tensor_of_another_size_rank_device_or_dtype(separate: bool, name: str) -> None:
    given = case(separate)[name]
    for d in range(given.dim()):
        if (name, d) != ("conv_weight", 1):  # three taps are valid
            refused(case(separate) | {name: given.narrow(d, 0, given.shape[d] - 1)}, r"\w+")
        if separate or (name, d) not in MAY_BE_LARGER:
            refused(case(separate) | {name: torch.cat([given, given.narrow(d, 0, 1)], d)}, r"\w+")
    refused(case(separate) | {name: given.unsqueeze(0)}, r"\w+")
    refused(case(separate) | {name: given.to("meta")}, r"\w+")
    for dtype in (torch.float64, torch.bool, torch.complex64):
        refused(case(separate) | {name: given.to(dtype)}, "out|qkv|z" if name == "qkv" else name)
    refused(case(separate) | {name: 3}, name)


VALUES: list[tuple[str, Change, str, str]] = [
    ("dk", lambda x: {"state_pool": torch.zeros(6, 2, 8, 80)}, "state_pool", "dk of 64, 96, 128, 192 or 256"),
    ("dv", lambda x: {"state_pool": torch.zeros(6, 2, 12, 64)}, "state_pool", "a multiple of 8 up to 256"),
    ("no heads", lambda x: {"state_pool": torch.zeros(6, 0, 8, 64)}, "state_pool", "a number of value heads"),
    ("key heads", lambda x: {"qkv": torch.zeros(2, 3 * 128 + 16).bfloat16()}, "qkv", "a divisor of the 2 value heads"),
    ("no key heads", lambda x: {"qkv": torch.zeros(2, 16).bfloat16()}, "qkv", "a divisor of the 2 value heads"),
    ("an odd width", lambda x: {"qkv": torch.zeros(2, 145).bfloat16()}, "qkv", "a divisor of the 2 value heads"),
    ("activation", lambda x: {"activation": "gelu"}, "activation", "'gelu'"),
    ("gate_activation", lambda x: {"gate_activation": "tanh"}, "gate_activation", "'tanh'"),
    ("norm_eps", lambda x: {"norm_eps": -1e-6}, "norm_eps", "not negative"),
    ("scale", lambda x: {"scale": float("inf")}, "scale", "finite"),
    ("null_slot", lambda x: {"null_slot": -1}, "null_slot", "a slot number"),
    ("lower_bound", lambda x: {"lower_bound": 0.0}, "lower_bound", "below 0"),
    ("dt_bias", lambda x: {"lower_bound": None, "A_log": None}, "dt_bias", "None without A_log and lower_bound"),
    ("z", lambda x: {"z": None}, "z", "z with norm_weight, or neither"),
    ("norm_weight", lambda x: {"norm_weight": None}, "norm_weight", "z with norm_weight, or neither"),
    ("one pool of two", lambda x: {"key_conv_pool": x["conv_pool"]}, "value_conv_pool", "or neither"),
    ("columns", lambda x: {"conv_pool": x["conv_pool"][..., :2]}, "conv_pool", "3 columns or more"),
    ("taps", lambda x: {"conv_weight": x["conv_weight"][:, :1]}, "conv_weight", "2 to 4 taps"),
    ("more taps", lambda x: {"conv_weight": torch.zeros(144, 5)}, "conv_weight", "2 to 4 taps"),
    ("weights by parts", lambda x: {"conv_weight": torch.zeros(3, 4, 48)}, "conv_weight", "not as wide as keys"),
    ("weights of four dimensions", lambda x: {"conv_weight": torch.zeros(1, 3, 4, 48)}, "conv_weight", "(3, W, C / 3)"),
    ("rows that are not contiguous", lambda x: {"qkv": x["qkv"].mT.contiguous().mT}, "qkv", "contiguous"),
    ("an unaligned pool", lambda x: {"state_pool": torch.zeros(6 * 1024 + 1)[1:].view(6, 2, 8, 64)}, "state_pool", "16 bytes"),
    ("a transposed pool", lambda x: {"state_pool": torch.zeros(6, 2, 64, 8).mT}, "state_pool", "contiguous"),
    ("a pool on itself", lambda x: {"state_pool": x["state_pool"][:1].expand(6, 2, 8, 64)}, "state_pool", ""),
    ("slots of tokens", lambda x: {"state_indices": torch.arange(2)[:, None]}, "state_indices", "(B,)"),
    ("out among inputs", lambda x: {"out": x["qkv"][:, :16]}, "out|qkv", ""),
    ("more sequences than slots", lambda x: {"state_indices": None, "state_pool": x["state_pool"][:1],
                                             "conv_pool": x["conv_pool"][:1]}, r"\w+", ""),
]  # fmt: skip


@pytest.mark.parametrize("change, argument, says", [row[1:] for row in VALUES], ids=[row[0] for row in VALUES])
def test_wrong_values(change: Change, argument: str, says: str) -> None:
    x = case()
    refused(x | change(x), argument, says)


def test_weights_by_parts() -> None:
    x = layer_arguments(2, 0, (1, 1), 64, 64, slots=6)
    for shape in ((3, 4, 63), (2, 4, 64), (3, 5, 64), (3, 1, 64)):
        for function in (kda_decode_layer, by_operators):
            if function is kda_decode_layer or shape[1] == 4:  # the operators take other numbers of taps
                refused(x | {"conv_weight": torch.zeros(shape)}, "conv_weight", function=function)


def test_pools_of_query_key_and_value() -> None:
    x = case(separate=True)
    refused(x | {"key_conv_pool": x["key_conv_pool"].float()}, "key_conv_pool", "bfloat16")
    refused(x | {"value_conv_pool": None}, "value_conv_pool", "or neither")
    refused(x | {"conv_pool": case()["conv_pool"]}, "conv_pool", "beside pools of key and value")
    refused(x | {"key_conv_pool": x["conv_pool"]}, "conv_pool|key_conv_pool", "overlap")


# ---- int8 states


def coded(separate: bool = False) -> dict[str, Any]:
    x = case(separate)
    codes, scales = gdn_cuda.convert_states(x["state_pool"], torch.int8)
    return x | {"state_pool": codes, "state_scales": scales}


SCALES: list[tuple[str, Change, str, str]] = [
    ("no scales", lambda x: {"state_scales": None}, "state_scales", "a tensor, as state_pool is int8"),
    ("no codes", lambda x: {"state_pool": x["state_pool"].float()}, "state_scales", "None, as state_pool is float32"),
    ("bytes", lambda x: {"state_pool": x["state_pool"].view(torch.uint8)}, "state_pool", "uint8"),
    ("scales in bf16", lambda x: {"state_scales": x["state_scales"].bfloat16()}, "state_scales", "float32"),
    ("too few columns", lambda x: {"state_scales": x["state_scales"][..., :1]}, "state_scales", "dk / 32"),
    ("too few slots", lambda x: {"state_scales": x["state_scales"][:-1]}, "state_scales", "the shape"),
    ("of another rank", lambda x: {"state_scales": x["state_scales"].flatten(-2)}, "state_scales", "the shape"),
    ("on a device", lambda x: {"state_scales": x["state_scales"].to("meta")}, "state_scales", "cpu"),
    ("a number", lambda x: {"state_scales": 1.0}, "state_scales", "a tensor or None"),
    ("transposed", lambda x: {"state_scales": x["state_scales"].mT.contiguous().mT}, "state_scales", "contiguous"),
    ("on themselves", lambda x: {"state_scales": x["state_scales"][:1].expand(6, -1, -1, -1)}, "state_scales", ""),
    ("codes as scales", lambda x: {"state_scales": x["state_pool"].view(torch.float32)[..., :2]}, r"state_\w+", ""),
    ("dt_bias as scales", lambda x: {"dt_bias": x["state_scales"].flatten()[:128]}, r"state_scales|dt_bias", "overlap"),
    ("out among codes", lambda x: {"out": x["state_pool"].view(torch.bfloat16)[:2, 0, 0, :16]}, r"\w+", "overlap"),
    ("out of another dtype", lambda x: {"out": torch.zeros(2, 16)}, "out", "bfloat16"),
    ("out of another shape", lambda x: {"out": x["out"][:1]}, "out", "(2, 16)"),
    ("out a number", lambda x: {"out": 3}, "out", ""),
    ("a pool of rank 3", lambda x: {"state_pool": x["state_pool"][0]}, "state_pool", "(slots, Hv, dv, dk)"),
    ("qkv of rank 3", lambda x: {"qkv": x["qkv"][None]}, "qkv", "(B, C)"),
    ("no z", lambda x: {"z": None}, "z", "z with norm_weight, or neither"),
    ("slots of tokens", lambda x: {"state_indices": torch.arange(2)[:, None]}, "state_indices", ""),
    ("lower_bound", lambda x: {"lower_bound": 0.0}, "lower_bound", "below 0"),
    ("norm_weight", lambda x: {"norm_weight": x["norm_weight"][:4]}, "norm_weight", ""),
    ("taps", lambda x: {"conv_weight": x["conv_weight"][:5]}, "conv_weight", ""),
    ("b", lambda x: {"b": x["b"][:, :1]}, "b", ""),
]  # fmt: skip


@pytest.mark.parametrize("change, argument, says", [row[1:] for row in SCALES], ids=[row[0] for row in SCALES])
def test_wrong_scales(change: Change, argument: str, says: str) -> None:
    for separate in (False, True):
        x = coded(separate)
        refused(x | change(x), argument, says)


def test_keys_that_are_no_multiple_of_32() -> None:
    x = layer_arguments(2, 0, dk=48, slots=6)
    x |= {"state_pool": torch.zeros(6, 2, 8, 48, dtype=torch.int8), "state_scales": torch.zeros(6, 2, 8, 1)}
    refused(x, "state_pool", "multiple of 32")


@pytest.mark.parametrize("function", [kda_decode_layer, by_operators])
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("given", [case, coded])
def test_a_slot_past_the_pool(given: Callable[..., Any], separate: bool, function: Callable[..., Any]) -> None:
    x = given(separate)
    x["state_indices"][1] = 6
    if function is by_operators:
        del x["out"]
    refused(x, r"\w+", error=IndexError, function=function)
