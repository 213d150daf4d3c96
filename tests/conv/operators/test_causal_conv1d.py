"""Invalid arguments and unsupported derivatives of causal_conv1d, and torch.compile on CPU tensors."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from causal_cases import inputs

from gdn_cuda import causal_conv1d

ONES = torch.ones(2, 3, 8)
W4, B3 = torch.ones(3, 4), torch.ones(3)
POOL = torch.zeros(5, 3, 3)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"x": ONES[0]}, "x: expected rank 3 (B, D, L), got (3, 8)"),
    ({"x": ONES.int()}, "x: expected float32 or bfloat16 or float16 or float64, got int32"),
    ({"weight": W4[None]}, "weight: expected rank 2 (D, W), got (1, 3, 4)"),
    ({"weight": W4[:2]}, "weight: expected (D, W) = (3, 4), got (2, 4)"),
    ({"weight": W4[:, :0]}, "weight: expected W from 1 to 32, got (3, 0)"),
    ({"weight": torch.ones(3, 33)}, "weight: expected W from 1 to 32, got (3, 33)"),
    ({"weight": W4.double()}, "weight: expected float32 or bfloat16 or float16, got float64"),
    ({"bias": B3[:2]}, "bias: expected (D,) = (3,), got (2,)"),
    ({"bias": B3.int()}, "bias: expected float32 or bfloat16 or float16, got int32"),
    ({"activation": "gelu"}, "activation: expected None, 'silu' or 'swish', got 'gelu'"),
    ({"seq_idx": torch.zeros(2, 7).int()}, "seq_idx: expected (B, L) = (2, 8), got (2, 7)"),
    ({"seq_idx": torch.zeros(2, 8)}, "seq_idx: expected int32 or int64, got float32"),
    (
        {"initial_states": torch.zeros(2, 3, 4)},
        "initial_states: expected (B or sequences, D, W − 1) = (2, 3, 3), got (2, 3, 4)",
    ),
    ({"initial_states": torch.zeros(2, 3, 3).double()}, "initial_states: expected float32 or bfloat16 or float16, got float64"),
    ({"cu_seqlens": torch.tensor([0, 8])}, "x: expected (1, D, L), as cu_seqlens is given, got (2, 3, 8)"),
    (
        {"x": ONES[:1], "cu_seqlens": torch.tensor([0, 8]), "seq_idx": torch.zeros(1, 8).int()},
        "seq_idx: expected None with cu_seqlens, got (1, 8)",
    ),
    ({"state_indices": torch.zeros(2).int()}, "state_indices: expected None without conv_state, got a tensor"),
    ({"has_initial_state": torch.zeros(2).int()}, "has_initial_state: expected None without conv_state, got a tensor"),
    ({"conv_state": POOL, "initial_states": POOL}, "initial_states: expected None with conv_state, got a tensor"),
    (
        {"conv_state": POOL, "return_final_states": True},
        "return_final_states: expected False with conv_state, which holds them",
    ),
    ({"conv_state": POOL[:, :, :2]}, "conv_state: expected (slots, D=3, 3 or more), got (5, 3, 2)"),
    ({"conv_state": POOL[:, :2]}, "conv_state: expected (slots, D=3, 3 or more), got (5, 2, 3)"),
    ({"conv_state": POOL[:1]}, "conv_state: expected a slot for each of 2 sequences, as state_indices is None, got (1, 3, 3)"),
    ({"conv_state": POOL[:1].expand(5, 3, 3)}, "conv_state: expected "),
    ({"conv_state": POOL, "state_indices": torch.zeros(3).int()}, "state_indices: expected (2,) or (2, T)"),
    ({"conv_state": POOL, "state_indices": torch.zeros(2, 1).int()}, "state_indices: expected (sequences,), got (2, 1)"),
    (
        {"conv_state": POOL, "has_initial_state": torch.zeros(3).int()},
        "has_initial_state: expected (sequences,) = (2,), got (3,)",
    ),
    ({"conv_state": POOL, "has_initial_state": torch.zeros(2)}, "has_initial_state: expected int32 or int64, got float32"),
]


@pytest.mark.parametrize("change, message", BAD, ids=[message for _, message in BAD])
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^causal_conv1d: {re.escape(message)}"):
        causal_conv1d(**({"x": ONES, "weight": W4} | change))


def test_a_pool_that_is_x_is_refused() -> None:
    memory = torch.ones(2, 3, 8)
    with pytest.raises(ValueError, match=r"^causal_conv1d: conv_state: expected memory"):
        causal_conv1d(memory, W4, conv_state=memory[:, :, 4:])


def test_slots_past_the_pool_raise_on_the_cpu() -> None:
    pool = POOL.clone()
    with pytest.raises(IndexError, match=r"^causal_conv1d: state_indices: expected < 5, got 5"):
        causal_conv1d(ONES, W4, conv_state=pool, state_indices=torch.tensor([0, 5]))
    assert torch.equal(pool, POOL)


def test_other_derivatives_are_refused_by_name() -> None:
    x = ONES.clone().requires_grad_()
    (grad,) = torch.autograd.grad(causal_conv1d(x, W4).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^causal_conv1d: gradients of gradients are not computed"):
        torch.autograd.grad(grad.sum(), x)
    with pytest.raises(RuntimeError, match=r"^causal_conv1d: forward-mode derivatives are not computed"):
        torch.func.jvp(lambda x: causal_conv1d(x, W4), (ONES,), (ONES,))
    with pytest.raises(RuntimeError, match=r"^causal_conv1d: torch.vmap is not supported"):
        torch.vmap(lambda x: causal_conv1d(x, W4))(ONES[None])


@pytest.mark.parametrize("layout", ["tokens", "channels"])
def test_compiled_code_gives_the_same_results(layout: str, seed: int) -> None:
    x = inputs(2, 3, 9, 4, seed, bias=True, states=True, activation="silu", layout=layout)
    given = [x[name].requires_grad_() for name in ("x", "weight", "bias", "initial_states")]

    def layer(*leaves: torch.Tensor) -> torch.Tensor:
        out, states = causal_conv1d(*leaves[:3], None, leaves[3], True, "silu")
        return out.sum(1) + states.sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected, found = layer(*given), compiled(*given)
    assert torch.equal(found, expected)
    for mine, theirs in zip(*(torch.autograd.grad(y.square().sum(), given) for y in (found, expected)), strict=True):
        assert torch.equal(mine, theirs)


def test_outputs_have_the_layout_of_x() -> None:
    assert causal_conv1d(ONES, W4).stride() == ONES.stride()
    last = ONES.mT.contiguous().mT
    assert causal_conv1d(last, W4).stride() == last.stride()
