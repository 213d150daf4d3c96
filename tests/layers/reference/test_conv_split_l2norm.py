"""conv_split_l2norm on CPU tensors against its definition in fp64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from split_cases import GATES, check, check_gates_at_the_ends, check_gradients, inputs, with_gates, with_pool, with_states

from gdn_cuda import chunked_forward, conv_split_l2norm

F64 = torch.float64
HEADS = (2, 3, 4, 5)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"channels_last": False, "bias": False},
    {"l2norm": False},
    {"packed": [0, 2, 2, 3, 9]},
    {"packed": [0, 5, 7]},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("W", [1, 2, 4, 7])
def test_values_and_gradients(options: dict[str, Any], W: int, seed: int) -> None:
    x = inputs(1 if "packed" in options else 2, 9, HEADS, W, seed, dtype=F64, **options)
    check(x)
    check_gradients(x, seed)


@pytest.mark.parametrize("heads", [(0, 2, 4, 3), (2, 0, 4, 3), (1, 1, 1, 1), (0, 0, 4, 4), (2, 2, 0, 3)])
@pytest.mark.parametrize("B, L", [(2, 5), (1, 1), (0, 4), (2, 0)])
def test_sizes_of_0_and_1(B: int, L: int, heads: tuple[int, int, int, int], seed: int) -> None:
    check(inputs(B, L, heads, 3, seed, dtype=F64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding(dtype: torch.dtype, seed: int) -> None:
    x = inputs(2, 9, HEADS, 4, seed, dtype=dtype)
    check(x)
    check_gradients(x, seed)


@pytest.mark.parametrize("width", [0, 2])
def test_pool(width: int, seed: int) -> None:
    x = inputs(1, 12, HEADS, 4, seed, packed=[0, 2, 2, 9, 11, 12])
    check(with_pool(x, [3, 1, 0, -1, 5], 6, seed, fresh=[2], width=width))
    x = inputs(3, 2, HEADS, 4, seed)
    check(with_pool(x, [3, -7, 0], 6, seed, fresh=[0], width=width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
@pytest.mark.parametrize("W", [1, 2, 4, 7])
def test_initial_states(W: int, dtype: torch.dtype, seed: int) -> None:
    """Sequences shorter than the convolution's window, and of no tokens, among others; states of x's dtype and in fp32."""
    wide = torch.float64 if dtype == F64 else torch.float32
    for given in (
        inputs(2, 9, HEADS, W, seed, dtype=dtype),
        inputs(3, 2, HEADS, W, seed, dtype=dtype, channels_last=False),
        inputs(1, 12, HEADS, W, seed, dtype=dtype, packed=[0, 2, 2, 3, 9]),
    ):
        for states in (dtype, wide):
            x = with_states(with_gates(given, seed), seed, dtype=states)
            check(x)
            check_gradients(x, seed)


def test_a_sequence_in_parts_has_the_gradients_of_the_whole(seed: int) -> None:
    """The states between the parts are the last inputs of the first part, of which they are a part of the graph."""
    x = inputs(2, 9, HEADS, 4, seed, dtype=F64)
    rows = x.x.clone().requires_grad_()
    first = replace(x, x=rows[..., :5])
    second = replace(x, x=rows[..., 5:], options={"initial_states": rows[..., 2:5]})
    parts = [torch.cat(both, 1) for both in zip(first.call(), second.call(), strict=True)]
    whole = replace(x, x=rows).call()
    grads = [torch.randn_like(y) for y in whole]
    assert all(torch.allclose(mine, theirs) for mine, theirs in zip(parts, whole, strict=True))
    mine, theirs = (torch.autograd.grad(y, rows, grads)[0] for y in (parts, whole))
    assert torch.allclose(mine, theirs, rtol=1e-10)


def test_gradcheck(seed: int) -> None:
    x = inputs(2, 4, (1, 1, 3, 2), 3, seed, dtype=F64)
    leaves = [y.requires_grad_() for y in (x.x, x.weight, x.bias) if y is not None]
    assert torch.autograd.gradcheck(lambda *y: conv_split_l2norm(*y, key_heads=1, value_heads=1, dk=3, dv=2), leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, F64])
def test_gates(dtype: torch.dtype, seed: int) -> None:
    """Inputs of gates: separate tensors, views, and another dtype than x."""
    for gate_dtype, views in ((dtype, False), (dtype, True), (torch.float32, False)):
        x = with_gates(inputs(2, 9, HEADS, 4, seed, dtype=dtype), seed, dtype=gate_dtype, views=views)
        check(x)
        check_gradients(x, seed)
    x = with_gates(inputs(1, 12, HEADS, 4, seed, dtype=dtype, packed=[0, 2, 2, 9]), seed)
    check(with_pool(x, [3, 1, 0], 6, seed, fresh=[2]))


@pytest.mark.parametrize("B, L, value_heads", [(0, 4, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1)])
def test_gates_of_sizes_0_and_1(B: int, L: int, value_heads: int, seed: int) -> None:
    check(with_gates(inputs(B, L, (2, value_heads, 4, 5), 4, seed), seed))


def test_gradients_of_gates_with_factors_out_of_range(seed: int) -> None:
    """exp(A_log) is infinite, softplus 0: the gradient is that of the product's limit."""
    x = with_gates(inputs(1, 1, (1, 2, 4, 4), 4, seed), seed)
    x.options |= {"A_log": torch.tensor([95.0, 120.0]), "a": torch.tensor([[[-100.0, -119.0]]]), "dt_bias": torch.zeros(2)}
    a = x.options["a"].requires_grad_()
    gate = x.call()[4]
    expected = -torch.exp(torch.tensor([-5.0, 1.0])).expand(1, 1, 2)
    assert torch.allclose(gate, expected, rtol=1e-4)
    assert torch.allclose(torch.autograd.grad(gate.sum(), a)[0], expected, rtol=1e-4)


def test_a_reset_before_the_recurrence(seed: int) -> None:
    """One a is +∞ and its gate −∞: gradients of A_log and dt_bias are those of the other tokens."""
    x = with_gates(inputs(1, 6, (1, 2, 4, 4), 4, seed), seed)
    x.options["a"][0, 3, 1] = torch.inf
    leaves = [x.options[name].requires_grad_() for name in GATES]
    *rows, gate = x.call()
    gate.retain_grad()
    chunked_forward(*rows, gate)[0].square().sum().backward()
    assert gate[0, 3, 1] == -torch.inf and gate.grad is not None and gate.grad[0, 3, 1] == 0
    assert all(y.grad is not None and bool(y.grad.isfinite().all()) for y in leaves)
    by_A_log = (gate.grad * gate.detach()).nan_to_num(0).sum((0, 1))
    assert torch.allclose(x.options["A_log"].grad, by_A_log, rtol=1e-5)


def test_gates_gradcheck(seed: int) -> None:
    x = with_gates(inputs(2, 3, (1, 2, 3, 2), 3, seed, dtype=F64), seed)
    leaves = [x.options[name].requires_grad_() for name in GATES]

    def gates(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return replace(x, options=dict(zip(GATES, given, strict=True))).call()[3:]

    assert torch.autograd.gradcheck(gates, leaves)


def test_gradients_of_extreme_gates(seed: int) -> None:
    check_gates_at_the_ends(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, F64])
def test_gradients_of_heads_of_one_channel(dtype: torch.dtype, seed: int) -> None:
    """q / |q| is ±1 but for eps: a difference would cancel its whole gradient."""
    for eps in (1e-6, 0.5):
        check_gradients(inputs(1, 40, (2, 3, 1, 5), 4, seed, dtype=dtype, eps=eps), seed)
