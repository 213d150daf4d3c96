"""hyena_short on CPU tensors: its definition in fp64, gradients, and refusals of wrong input by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hyena_fir_checks import LAYOUTS
from hyena_short_checks import check_short, check_short_gradients

from gdn_cuda import hyena_short


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 5, 40])
def test_definition(dtype: torch.dtype, layout: str, L: int, seed: int) -> None:
    for K in (1, 3, 7):
        weights = torch.float64 if dtype == torch.float64 else torch.float32
        check_short(2, 6, L, K, seed, dtype, layout, groups=2, weights=weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 5, 40])
def test_gradients(dtype: torch.dtype, layout: str, L: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights = torch.float64 if dtype == torch.float64 else torch.float32
    for K, gated_bias in ((1, False), (3, True), (7, True)):
        options = {"gated_bias": gated_bias, "initial_state": torch.randn(2, 6, K - 1, generator=rng).to(weights)}
        check_short_gradients(2, 6, L, K, seed, dtype, layout, groups=2, weights=weights, **options)
        mask = torch.rand(2, L, generator=rng) < 0.7
        check_short_gradients(2, 6, L, K, seed, dtype, layout, groups=6, weights=weights, padding_mask=mask, bias=None)


def test_gradients_of_gradients_are_refused() -> None:
    leaves = [torch.ones(1, 2, 5, requires_grad=True) for _ in range(3)]
    weight = torch.ones(2, 1, 3, requires_grad=True)
    first = torch.autograd.grad(hyena_short(*leaves, weight).square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="hyena_short: gradients of gradients"):
        torch.autograd.grad(first[0].sum(), leaves)


def test_a_tensor_without_gradient_does_not_change_others(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    given = [torch.randn(2, 4, 9, generator=rng) for _ in range(3)] + [torch.randn(2, 1, 5, generator=rng)]
    every = [y.clone().requires_grad_() for y in given]
    wanted = torch.autograd.grad(hyena_short(*every).sum(), every)
    for i in range(4):
        alone = [y.clone().requires_grad_(i == j) for j, y in enumerate(given)]
        (found,) = torch.autograd.grad(hyena_short(*alone).sum(), alone[i])
        assert torch.equal(found, wanted[i])


def arguments() -> dict[str, Any]:
    x = {name: torch.ones(2, 6, 10) for name in ("x1", "x2", "v")}
    return x | {"weight": torch.ones(3, 1, 7), "bias": torch.ones(6), "initial_state": torch.ones(2, 6, 6)}


# argument, value, the end of the error
WRONG: list[tuple[str, Any, str]] = [
    ("x1", torch.ones(6, 10), "rank 3 (B, D, L), got (6, 10)"),
    ("x1", torch.ones(2, 6, 10, dtype=torch.int32), "float32 or bfloat16 or float16 or float64, got int32"),
    ("x2", torch.ones(2, 6, 9), "got (2, 6, 9)"),
    ("v", torch.ones(2, 6, 10).half(), "float32, got float16"),
    ("weight", torch.ones(3, 7), "rank 3 (groups, 1, K), got (3, 7)"),
    ("weight", torch.ones(3, 2, 7), "got (3, 2, 7)"),
    ("weight", torch.ones(4, 1, 7), "a number of groups that divides the 6 channels, got (4, 1, 7)"),
    ("weight", torch.ones(0, 1, 7), "a number of groups that divides the 6 channels, got (0, 1, 7)"),
    ("weight", torch.ones(3, 1, 0), "1 to 32 taps, got (3, 1, 0)"),
    ("weight", torch.ones(3, 1, 33), "1 to 32 taps, got (3, 1, 33)"),
    ("weight", torch.ones(3, 1, 7).bfloat16(), "float32, got bfloat16"),
    ("bias", torch.ones(3), "got (3,)"),
    ("padding_mask", torch.ones(2, 9), "got (2, 9)"),
    ("padding_mask", torch.ones(2, 10, dtype=torch.int8), "got int8"),
    ("initial_state", torch.ones(2, 6, 7), "got (2, 6, 7)"),
    ("initial_state", torch.ones(2, 6, 6).double(), "float32, got float64"),
]


@pytest.mark.parametrize("argument, given, got", WRONG)
def test_wrong_arguments_are_refused_by_name(argument: str, given: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^hyena_short: {argument}: expected .*{re.escape(got)}$"):
        hyena_short(**arguments() | {argument: given})


# the same for the operator of the gradients
WRONG_GRADIENTS: list[tuple[str, Any, str]] = [
    ("grad", torch.ones(2, 6, 9), "got (2, 6, 9)"),
    ("grad", torch.ones(2, 6, 10).half(), "float32, got float16"),
    ("grad_state", torch.ones(2, 6, 7), "got (2, 6, 7)"),
    ("grad_state", torch.ones(2, 6, 6).half(), "float32, got float16"),
    ("weight", torch.ones(3, 1, 33), "1 to 32 taps, got (3, 1, 33)"),
]


@pytest.mark.parametrize("argument, given, got", WRONG_GRADIENTS)
def test_wrong_gradients_are_refused_by_name(argument: str, given: Any, got: str) -> None:
    x = arguments() | {"grad": torch.ones(2, 6, 10), "grad_state": torch.ones(2, 6, 6), "padding_mask": None}
    with pytest.raises(ValueError, match=rf"^hyena_short(_backward)?: {argument}: expected .*{re.escape(got)}$"):
        torch.ops.gdn_cuda.hyena_short_backward(**x | {"gated_bias": False} | {argument: given})


def test_too_many_tokens_are_refused() -> None:
    x = torch.empty(1, 1, 1, device="meta").expand(1, 1, 2**31)
    with pytest.raises(ValueError, match="hyena_short: x1: expected at most 2147479552 tokens, got 2147483648"):
        hyena_short(x, x, x, torch.empty(1, 1, 3, device="meta"))
