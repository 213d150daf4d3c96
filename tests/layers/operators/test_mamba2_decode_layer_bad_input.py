"""Wrong input of mamba2_decode_layer raises an error that names function, argument, expected and got, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mamba2_oracle import draws
from torch import Tensor

from gdn_cuda import mamba2_decode_layer

Change = Callable[[dict[str, Any]], dict[str, Any]]


def case() -> dict[str, Any]:
    return draws(0) | {"out": torch.zeros(3, 32, dtype=torch.bfloat16)}


def refused(x: dict[str, Any], argument: str, says: str = "", error: type[Exception] = ValueError) -> None:
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor) and y.device.type == "cpu"}
    with pytest.raises(error) as caught:
        mamba2_decode_layer(**x)
    text = str(caught.value)
    assert re.fullmatch(rf"mamba2_decode_layer: (?:{argument}): expected .+, got .+", text, re.DOTALL), text
    assert says in text
    for name, old in before.items():
        assert torch.equal(old.nan_to_num(), x[name].nan_to_num()), f"{name} was written"


TENSORS = [name for name, y in case().items() if isinstance(y, Tensor)]
MAY_BE_LARGER = {("conv_pool", 2)}  # larger than necessary is valid


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_of_another_size_rank_device_or_dtype(name: str) -> None:
    given = case()[name]
    for d in range(given.dim()):
        refused(case() | {name: given.narrow(d, 0, given.shape[d] - 1)}, r"\w+")
        if (name, d) not in MAY_BE_LARGER:
            refused(case() | {name: torch.cat([given, given.narrow(d, 0, 1)], d)}, r"\w+")
    refused(case() | {name: given.unsqueeze(0)}, r"\w+")
    refused(case() | {name: given.to("meta")}, r"\w+")
    for dtype in (torch.float64, torch.bool, torch.complex64):
        refused(case() | {name: given.to(dtype)}, name)
    refused(case() | {name: 3}, name)


VALUES: list[tuple[str, Change, str, str]] = [
    ("states", lambda x: {"state_pool": torch.zeros(6, 4, 8, 96)}, "state_pool", "64, 128 or 256 states"),
    ("groups", lambda x: {"groups": 3}, "groups", "a divisor of the 4 heads"),
    ("no groups", lambda x: {"groups": 0}, "groups", "a divisor of the 4 heads"),
    ("other groups", lambda x: {"groups": 4}, "xBC", "(B, H P + 2 groups N)"),
    ("activation", lambda x: {"activation": "gelu"}, "activation", "'gelu'"),
    ("dt_limit", lambda x: {"dt_limit": (1.0, 0.5)}, "dt_limit", "not above the upper one"),
    ("null_slot", lambda x: {"null_slot": -1}, "null_slot", "a slot number"),
    ("columns", lambda x: {"conv_pool": x["conv_pool"][..., :2]}, "conv_pool", "3 columns or more"),
    ("taps", lambda x: {"conv_weight": x["conv_weight"][:, :3]}, "conv_weight", "(C, 4)"),
    ("an unaligned pool", lambda x: {"state_pool": torch.zeros(6 * 2048 + 1)[1:].view(6, 4, 8, 64)}, "state_pool", "16 bytes"),
    ("a transposed pool", lambda x: {"state_pool": torch.zeros(6, 4, 64, 8).mT}, "state_pool", "contiguous"),
    ("a pool on itself", lambda x: {"state_pool": x["state_pool"][:1].expand(6, 4, 8, 64)}, "state_pool", ""),
    ("slots of tokens", lambda x: {"state_indices": torch.arange(3)[:, None]}, "state_indices", "(B,)"),
    ("out among inputs", lambda x: {"out": x["xBC"][:, :32]}, "out|xBC", ""),
    ("more sequences than slots", lambda x: {"state_indices": None, "state_pool": x["state_pool"][:2],
                                             "conv_pool": x["conv_pool"][:2]}, r"\w+", ""),
]  # fmt: skip


@pytest.mark.parametrize("change, argument, says", [row[1:] for row in VALUES], ids=[row[0] for row in VALUES])
def test_wrong_values(change: Change, argument: str, says: str) -> None:
    x = case()
    refused(x | change(x), argument, says)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"norm_weight": torch.ones(31)}, ""),
        ({"norm_weight": torch.ones(32, dtype=torch.int64)}, ""),
        ({"norm_weight": 3}, "norm_weight"),
        ({"norm_weight": torch.ones(32), "norm_group_size": 5}, "group_size"),
        ({"norm_weight": torch.ones(32), "norm_eps": -1.0}, "eps"),
        ({"norm_weight": torch.ones(32), "out": torch.zeros(3, 32, dtype=torch.bfloat16)}, "out"),
    ],
)
def test_a_norm_is_refused_before_anything_is_written(change: dict[str, Any], says: str) -> None:
    x = draws(0)
    before = {name: y.clone() for name, y in x.items() if isinstance(y, Tensor)}
    with pytest.raises(ValueError, match=r"\w+: \w+: expected .+, got .+") as caught:
        mamba2_decode_layer(**x | change)
    assert says in str(caught.value)
    assert all(torch.equal(x[name], y) for name, y in before.items())


def test_a_slot_past_the_pool() -> None:
    x = case()
    x["state_indices"][1] = 6
    refused(x, "state_indices", error=IndexError)
