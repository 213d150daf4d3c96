"""kda_prefill_layer on CPU tensors: prompts equal steps of their tokens by kda_decode_layer's definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kda_oracle import step
from kda_prompts import PER_TOKEN, POOLS, prompts
from layer_oracle import float64
from torch import Tensor

from gdn_cuda import kda_decode_layer, kda_prefill_layer


def by_steps(x: dict[str, Any], lengths: list[int], starts: list[bool]) -> tuple[Tensor, dict[str, Any]]:
    """Outputs of packed sequences, and the pools, by the definition of a step."""
    pools = {name: x[name].clone(memory_format=torch.preserve_format) for name in POOLS}
    outputs, token = [], 0
    for n, length in enumerate(lengths):
        slot = int(x["state_indices"][n])
        if slot >= 0 and not starts[n]:
            pools["conv_pool"][slot], pools["state_pool"][slot] = 0, 0
        for _ in range(length):
            now = {name: x[name][0, token : token + 1] for name in PER_TOKEN if x.get(name) is not None}
            out, after = step(x | pools | now | {"state_indices": x["state_indices"][n : n + 1]})
            outputs.append(torch.from_numpy(out))
            for name, pool in pools.items():
                pool.copy_(torch.from_numpy(after[name]))
            token += 1
    return torch.cat(outputs), pools


def relative(found: Tensor, expected: Any) -> float:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    return float((torch.from_numpy(float64(found)) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("more", [{"lower_bound": -5.0}, {}, {"z": None, "norm_weight": None, "dt_bias": None, "scale": 0.5}])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_packed_prompts(state: torch.dtype, more: dict[str, Any], seed: int) -> None:
    """Sequences of no, one and many tokens, padding, starts from zeros with slots full of NaN, and tokens of no sequence."""
    lengths, starts = [20, 0, 1, 3, 70, 0], [True, True, False, True, False, False]
    x = prompts(seed, 96, state=state, columns=4) | more
    x["state_indices"] = torch.tensor([4, 1, 2, -1, 0, 3])
    expected, after = by_steps(x, lengths, starts)
    x["conv_pool"][[2, 0, 3]], x["state_pool"][[2, 0, 3]] = torch.nan, torch.nan
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    out = kda_prefill_layer(**x, key_heads=1, cu_seqlens=offsets, has_initial_state=torch.tensor(starts))
    assert relative(out[0, : sum(lengths)], expected) < 2**-7
    assert not out[:, sum(lengths) :].any() and not out[0, 21:24].any()
    assert relative(x["conv_pool"], after["conv_pool"]) == 0
    assert relative(x["state_pool"], after["state_pool"]) < 2**-7


def test_padded_prompts_and_the_tokens_after_them(seed: int) -> None:
    x = prompts(seed, 12, heads=(2, 6), dk=64, dv=24) | {"allow_negative_eigenvalues": True, "gate_activation": "silu"}
    x["state_indices"] = torch.tensor([4])
    expected, after = by_steps(x, [12], [True])
    part = {name: x[name][:, :8] for name in PER_TOKEN}
    found = [kda_prefill_layer(**x | part, key_heads=2)[0]]
    for token in range(8, 12):
        found.append(kda_decode_layer(**x | {name: x[name][:, token] for name in PER_TOKEN}))
    assert relative(torch.cat(found), expected) < 2**-7
    assert relative(x["conv_pool"], after["conv_pool"]) == 0 and relative(x["state_pool"], after["state_pool"]) < 2**-7


def test_without_pools(seed: int) -> None:
    """Every sequence starts from zeros; the call is that with pools of zeros."""
    x = prompts(seed, 33) | {"lower_bound": -5.0}
    pools = {name: torch.zeros_like(x[name]) for name in POOLS}
    expected = kda_prefill_layer(**x | pools, key_heads=1)
    assert torch.equal(kda_prefill_layer(**x | dict.fromkeys(POOLS), key_heads=1), expected)


@pytest.mark.parametrize("packed", [False, True])
def test_prompts_without_tokens(packed: bool, seed: int) -> None:
    """Both pools keep the state that a prompt starts from, so the next call continues from it."""
    x = prompts(seed, 0, 1 if packed else 3) | {"state_indices": torch.tensor([3, 0, 4])}
    before = {name: x[name].clone() for name in POOLS}
    offsets = torch.zeros(4, dtype=torch.int32) if packed else None
    out = kda_prefill_layer(**x, key_heads=1, cu_seqlens=offsets, has_initial_state=torch.tensor([False, True, False]))
    assert out.shape[1] == 0
    for name, pool in before.items():
        assert not x[name][[3, 4]].any() and torch.equal(x[name][:3], pool[:3]), name


def test_a_null_slot_is_padding(seed: int) -> None:
    x = prompts(seed, 5, 3) | {"state_indices": torch.tensor([3, 0, 1]), "null_slot": 0}
    before = {name: x[name].clone() for name in POOLS}
    out = kda_prefill_layer(**x, key_heads=1)
    assert not out[1].any() and out[0].any()
    assert all(torch.equal(x[name][[0, 2]], before[name][[0, 2]]) for name in before)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"key_heads": 3}, "key_heads: expected a divisor"),
        ({"key_heads": 2}, "qkv: expected"),
        ({"key_heads": "1"}, "key_heads: expected"),
        ({"qkv": None}, "qkv: expected a tensor"),
        ({"qkv": torch.zeros(5, 144)}, "qkv: expected"),
        ({"qkv": torch.zeros(2, 5, 145)}, "qkv: expected"),
        ({"a": torch.zeros(2, 5, 2)}, "a: expected"),
        ({"a": torch.zeros(2, 6, 2, 64)}, "a: expected"),
        ({"a": torch.zeros(2, 5, 2, 64, dtype=torch.int32)}, "a: expected"),
        ({"b": torch.zeros(2, 5, 3)}, "b: expected"),
        ({"b": torch.zeros(2, 5, 2, dtype=torch.int32)}, "b: expected"),
        ({"z": None}, "z: expected"),
        ({"norm_weight": None}, "norm_weight: expected"),
        ({"z": torch.zeros(2, 5, 15)}, "z: expected"),
        ({"lower_bound": 1.0}, "lower_bound: expected"),
        ({"dt_bias": torch.zeros(2, 63)}, "dt_bias: expected"),
        ({"A_log": torch.zeros(3)}, "A_log: expected"),
        ({"state_pool": torch.zeros(5, 1, 8, 64)}, "state_pool: expected"),
        ({"state_pool": torch.zeros(5, 2, 8, 64, dtype=torch.int32)}, "state_pool: expected"),
        ({"state_pool": torch.zeros(1, 2, 8, 64).expand(5, 2, 8, 64)}, "state_pool: expected"),
        ({"scale": float("nan")}, "scale: expected"),
        ({"has_initial_state": torch.ones(2, dtype=torch.int32)}, "has_initial_state: expected bool"),
        ({"norm_weight": torch.zeros(7)}, "norm_weight: expected"),
        ({"norm_eps": -1.0}, "norm_eps: expected"),
        ({"gate_activation": "tanh"}, "gate_activation: expected"),
        ({"conv_pool": torch.zeros(6, 144, 3)}, "conv_pool: expected as many slots as state_pool"),
        ({"conv_pool": None}, "conv_pool: expected a tensor"),
        ({"conv_pool": None, "state_pool": None, "state_indices": torch.tensor([1, 0])}, "state_indices: expected None"),
        ({"conv_weight": torch.zeros(9, 4)}, "conv_weight: expected"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "qkv: expected"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(changes: dict[str, Any], text: str, seed: int) -> None:
    x = prompts(seed, 5, 2) | {"key_heads": 1}
    before = {name: x[name].clone() for name in POOLS}
    with pytest.raises(ValueError, match=f"kda_prefill_layer: {text}"):
        kda_prefill_layer(**x | changes)
    assert all(torch.equal(x[name], before[name]) for name in before)
