"""Arguments of conv_split_l2norm that are refused, and compiled calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from split_cases import inputs, with_gates, with_states

from gdn_cuda import conv_split_l2norm

X, WEIGHT = torch.ones(2, 31, 6), torch.ones(31, 4)
HEADS = {"key_heads": 2, "value_heads": 3, "dk": 4, "dv": 5}
GATES = {"a": torch.ones(2, 6, 3), "b": torch.ones(2, 6, 3), "A_log": torch.ones(3), "dt_bias": torch.ones(3)}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": X[0]}, "x: expected rank 3 (B, D, L), got (31, 6)"),
    ({"x": X.int()}, "x: expected float32 or bfloat16 or float16 or float64, got int32"),
    ({"weight": WEIGHT[:30]}, "weight: expected (D, W) = (31, 4), got (30, 4)"),
    ({"bias": torch.ones(30)}, "bias: expected (D,) = (31,), got (30,)"),
    ({"key_heads": 1}, "x: expected D = 2·1·4 + 3·5 = 23 channels, got (2, 31, 6)"),
    ({"key_heads": -2}, "heads: expected numbers from 0 to 2^24, got -2"),
    ({"dv": 2**40}, "dv: expected numbers from 0 to 2^24, got 1099511627776"),
    ({"eps": -1.0}, "eps: expected a number that is not negative, got -1"),
    ({"state_indices": torch.tensor([0, 1])}, "state_indices: expected None without conv_state, got a tensor"),
    ({"conv_state": torch.ones(4, 31, 2)}, "conv_state: expected (slots, D=31, 3 or more), got (4, 31, 2)"),
    ({"conv_state": torch.ones(1, 31, 3).expand(4, 31, 3)}, "conv_state: expected"),
    (GATES | {"b": None}, "b: expected a tensor, as a is given, got None"),
    (GATES | {"dt_bias": None}, "dt_bias: expected a tensor, as a is given, got None"),
    (GATES | {"a": None}, "b: expected None without a, got a tensor"),
    (GATES | {"a": torch.ones(2, 6, 4)}, "a: expected (B, L, value_heads) = (2, 6, 3), got (2, 6, 4)"),
    (GATES | {"b": torch.ones(2, 6, 4)}, "b: expected the shape of a (2, 6, 3), got (2, 6, 4)"),
    (GATES | {"b": torch.ones(2, 6, 3).half()}, "b: expected float32, got float16"),
    (GATES | {"a": torch.ones(2, 6, 3).int()}, "a: expected float32 or bfloat16 or float16 or float64, got int32"),
    (GATES | {"A_log": torch.ones(2)}, "A_log: expected (Hv,) = (3,), got (2,)"),
    (GATES | {"A_log": torch.ones(3).double()}, "A_log: expected float32 or bfloat16 or float16, got float64"),
    (GATES | {"dt_bias": torch.ones(6)[::2]}, "dt_bias: expected a contiguous last dimension, got stride 2"),
    (
        {"initial_states": torch.ones(2, 31, 4)},
        "initial_states: expected (B or sequences, D, W − 1) = (2, 31, 3), got (2, 31, 4)",
    ),
    (
        {"initial_states": torch.ones(2, 31, 3).double()},
        "initial_states: expected float32 or bfloat16 or float16, got float64",
    ),
    ({"cu_seqlens": torch.tensor([0, 6])}, "x: expected (1, D, L), as cu_seqlens is given, got (2, 31, 6)"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_refused(change: dict[str, Any], message: str) -> None:
    for pool in ({}, {"conv_state": torch.ones(2, 31, 3)}):
        if pool and change.keys() & {"initial_states", "state_indices", "cu_seqlens", "conv_state", "weight"}:
            continue
        with pytest.raises(ValueError, match=f"^conv_split_l2norm: {re.escape(message)}"):
            conv_split_l2norm(**({"x": X, "weight": WEIGHT} | HEADS | pool | change))


def test_initial_states_and_a_pool() -> None:
    states = {"initial_states": torch.ones(2, 31, 3), "conv_state": torch.ones(2, 31, 3)}
    with pytest.raises(ValueError, match=r"^conv_split_l2norm: initial_states: expected None with conv_state, got a tensor"):
        conv_split_l2norm(X, WEIGHT, **HEADS, **states)


def test_a_pool_has_no_gradients() -> None:
    q, _, _ = conv_split_l2norm(X.clone().requires_grad_(), WEIGHT, **HEADS, conv_state=torch.ones(2, 31, 3))
    with pytest.raises(RuntimeError, match=r"conv_split_l2norm"):
        q.sum().backward()


def test_a_slot_past_the_pool() -> None:
    slots = torch.tensor([0, 2])
    with pytest.raises(IndexError, match=r"^conv_split_l2norm: state_indices"):
        conv_split_l2norm(X, WEIGHT, **HEADS, conv_state=torch.ones(2, 31, 3), state_indices=slots)


def test_a_pool_that_overlaps_x() -> None:
    memory = torch.ones(2 * 31 * 6 + 31 * 3)
    x, pool = memory[: 2 * 31 * 6].view(2, 31, 6), memory[2 * 31 * 6 - 1 : -1].view(1, 31, 3)
    with pytest.raises(ValueError, match=r"^conv_split_l2norm: conv_state: expected"):
        conv_split_l2norm(x[:1], WEIGHT, **HEADS, conv_state=memory[:93].view(1, 31, 3))
    with pytest.raises(ValueError, match=r"^conv_split_l2norm: conv_state: expected"):
        conv_split_l2norm(x, WEIGHT, **HEADS, conv_state=pool, state_indices=torch.tensor([0, -1]))


def test_compiled(seed: int) -> None:
    given = with_states(with_gates(inputs(2, 9, (2, 3, 4, 5), 4, seed, dtype=torch.bfloat16), seed), seed)
    leaves = [y.requires_grad_() for y in (given.x, given.weight, *given.options.values())]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        named = dict(zip(given.options, x[2:], strict=True))
        return sum(y.float().square().sum() for y in conv_split_l2norm(*x[:2], **given.heads, **named, l2norm=False))

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    both = (torch.autograd.grad(f(*leaves), leaves) for f in (compiled, loss))
    for mine, other in zip(*both, strict=True):
        assert torch.equal(mine, other)
