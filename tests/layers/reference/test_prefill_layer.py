"""gdn_prefill_layer on CPU tensors: prompts equal steps of their tokens by gdn_decode_layer's definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layer_oracle import float64, step
from torch import Tensor

from gdn_cuda import gdn_decode_layer, gdn_prefill_layer
from gdn_cuda.layers.decode_layer import layer_arguments

PER_TOKEN = ("qkvz", "ba", "z", "a")


def by_steps(x: dict[str, Any], lengths: list[int], starts: list[bool]) -> tuple[list[Any], dict[str, Any]]:
    """Outputs of each packed sequence, and the pools, by the definition of a step of up to 16 tokens."""
    pools = {name: x[name].clone(memory_format=torch.preserve_format) for name in ("conv_pool", "state_pool")}
    outputs, first = [], 0
    for n, length in enumerate(lengths):
        slot = int(x["state_indices"][n])
        if slot >= 0 and not starts[n]:
            pools["conv_pool"][slot], pools["state_pool"][slot] = 0, 0
        for token in range(first, first + length, 16):
            last = min(token + 16, first + length)
            part = {name: x[name][:, token:last] for name in PER_TOKEN if name in x}
            given = x | pools | part | {"state_indices": x["state_indices"][n : n + 1]}
            out, after = step(given)
            outputs.append(out[0])
            for name, pool in pools.items():
                pool.copy_(torch.from_numpy(after[name]))
        first += length
    return outputs, pools


def relative(found: Tensor, expected: Any) -> float:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    return float((torch.from_numpy(float64(found)) - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("layout", ["qwen3_next", "qwen3_5", "split"])
@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_packed_prompts(layout: str, state: torch.dtype, seed: int) -> None:
    """Sequences of no, one and many tokens, padding, starts from zeros with slots full of NaN, and tokens of no sequence."""
    lengths, starts = [20, 0, 1, 3, 70, 0], [True, True, False, True, False, False]
    x = layer_arguments(1, 16, seed, layout, slots=6, state=state, columns=4)
    for name in PER_TOKEN:
        if name in x:
            x[name] = torch.cat([x[name], *(torch.randn_like(x[name]) for _ in range(5))], 1)
    x["state_indices"] = torch.tensor([4, 1, 2, -1, 0, 3])
    expected, after = by_steps(x, lengths, starts)
    x["conv_pool"][[2, 0, 3]], x["state_pool"][[2, 0, 3]] = torch.nan, torch.nan
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    out = gdn_prefill_layer(**x, cu_seqlens=offsets, has_initial_state=torch.tensor(starts))
    assert relative(out[:, : sum(lengths)], torch.cat([torch.from_numpy(y) for y in expected])) < 2**-7
    assert not out[:, sum(lengths) :].any() and not out[0, 21:24].any()
    assert relative(x["conv_pool"], after["conv_pool"]) == 0
    assert relative(x["state_pool"], after["state_pool"]) < 2**-7


@pytest.mark.parametrize("more", [{"allow_negative_eigenvalues": True}, {"gate_activation": "sigmoid", "scale": 0.3}])
def test_padded_prompts_and_the_tokens_after_them(more: dict[str, Any], seed: int) -> None:
    x = layer_arguments(2, 12, seed, "qwen3_5", (2, 6), 64, 24) | more
    whole = {name: y.clone(memory_format=torch.preserve_format) if isinstance(y, Tensor) else y for name, y in x.items()}
    expected, after = step(whole)
    found = []
    for first, last in ((0, 7), (7, 8), (8, 12)):
        part = {name: x[name][:, first:last] for name in PER_TOKEN if name in x}
        found.append((gdn_prefill_layer if first == 0 else gdn_decode_layer)(**x | part))
    assert relative(torch.cat(found, 1), expected) < 2**-7
    assert relative(x["conv_pool"], after["conv_pool"]) == 0 and relative(x["state_pool"], after["state_pool"]) < 2**-7


@pytest.mark.parametrize("packed", [False, True])
def test_prompts_without_tokens(packed: bool, seed: int) -> None:
    """Both pools keep the state that a prompt starts from, so the next call continues from it."""
    x = layer_arguments(1 if packed else 3, 1, seed, slots=5) | {"state_indices": torch.tensor([3, 0, 4])}
    before = {name: x[name].clone() for name in ("conv_pool", "state_pool")}
    none = {name: x[name][:, :0] for name in PER_TOKEN if name in x}
    offsets = torch.zeros(4, dtype=torch.int32) if packed else None
    out = gdn_prefill_layer(**x | none, cu_seqlens=offsets, has_initial_state=torch.tensor([False, True, False]))
    assert out.shape[1] == 0
    for name, pool in before.items():
        assert not x[name][[3, 4]].any() and torch.equal(x[name][:3], pool[:3]), name


def test_a_null_slot_is_padding(seed: int) -> None:
    x = layer_arguments(3, 5, seed, slots=4) | {"state_indices": torch.tensor([3, 0, 1]), "null_slot": 0}
    before = {name: x[name].clone() for name in ("conv_pool", "state_pool")}
    out = gdn_prefill_layer(**x)
    assert not out[1].any() and out[0].any()
    assert all(torch.equal(x[name][[0, 2]], before[name][[0, 2]]) for name in before)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"layout": "plain"}, "layout: expected one of"),
        ({"heads": (2, 3)}, "heads: expected"),
        ({"heads": 3}, "heads: expected"),
        ({"dv": 16}, "qkvz: expected"),
        ({"z": torch.zeros(1)}, "z: expected None"),
        ({"a": torch.zeros(1)}, "a: expected None"),
        ({"ba": torch.zeros(2, 5, 3)}, "ba: expected"),
        ({"qkvz": None}, "qkvz: expected a tensor"),
        ({"qkvz": torch.zeros(5, 160)}, "qkvz: expected"),
        ({"layout": "split"}, "z: expected a tensor"),
    ],
)
def test_wrong_input(changes: dict[str, Any], text: str, seed: int) -> None:
    with pytest.raises(ValueError, match=f"gdn_prefill_layer: {text}"):
        gdn_prefill_layer(**layer_arguments(2, 5, seed) | changes)


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"state_pool": torch.zeros(4, 1, 8, 64)}, "gdn_prefill_layer: state_pool: expected"),
        ({"state_pool": torch.zeros(4, 2, 8, 64, dtype=torch.float64)}, "gdn_prefill_layer: state_pool: expected"),
        ({"state_pool": torch.zeros(1, 2, 8, 64).expand(4, 2, 8, 64)}, "gdn_prefill_layer: state_pool: expected"),
        ({"A_log": torch.zeros(3)}, "gdn_prefill_layer: A_log: expected"),
        ({"scale": float("nan")}, "gdn_prefill_layer: scale: expected"),
        ({"has_initial_state": torch.ones(2, dtype=torch.int32)}, "gdn_prefill_layer: has_initial_state: expected bool"),
        ({"norm_weight": torch.zeros(7)}, "gdn_prefill_layer: norm_weight: expected"),
        ({"norm_eps": -1.0}, "gdn_prefill_layer: norm_eps: expected"),
        ({"gate_activation": "tanh"}, "gdn_prefill_layer: gate_activation: expected"),
        ({"conv_pool": torch.zeros(5, 160, 3)}, "gdn_prefill_layer: conv_pool: expected as many slots as state_pool"),
        ({"conv_weight": torch.zeros(9, 4)}, "gdn_prefill_layer: conv_weight: expected"),
    ],
)
def test_errors_of_later_operators_are_raised_before_the_first_operator_writes(
    changes: dict[str, Any], text: str, seed: int
) -> None:
    x = layer_arguments(2, 5, seed) | changes
    before = {name: x[name].clone() for name in ("conv_pool", "state_pool")}
    with pytest.raises(ValueError, match=text):
        gdn_prefill_layer(**x)
    assert all(torch.equal(x[name], before[name]) for name in before)
