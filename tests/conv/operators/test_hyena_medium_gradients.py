"""Gradients of hyena_medium on CPU tensors: its definition in fp64, and refusals by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hyena_fir_checks import LAYOUTS
from hyena_medium_checks import check_medium_gradients

from gdn_cuda import hyena_medium


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("L", [0, 1, 5, 40])
def test_definition(dtype: torch.dtype, layout: str, L: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    weights = torch.float64 if dtype == torch.float64 else torch.float32
    for K in (1, 3, 12):
        options = {"initial_state": torch.randn(2, 6, K - 1, generator=rng).to(weights)}
        check_medium_gradients(2, 6, L, K, seed, dtype, layout, groups=2, weights=weights, **options)
        mask = torch.rand(2, L, generator=rng) < 0.7
        check_medium_gradients(2, 6, L, K, seed, dtype, layout, groups=6, weights=weights, padding_mask=mask)


def test_gradients_of_gradients_are_refused() -> None:
    leaves = [torch.ones(1, 2, 5, requires_grad=True) for _ in range(3)]
    weight, bias = torch.ones(2, 1, 3, requires_grad=True), torch.ones(2)
    first = torch.autograd.grad(hyena_medium(*leaves, weight, bias).square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="hyena_medium: gradients of gradients"):
        torch.autograd.grad(first[0].sum(), leaves)


def test_a_tensor_without_gradient_does_not_change_others(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    shapes = [(2, 4, 9)] * 3 + [(2, 1, 5), (4,)]
    given = [torch.randn(*shape, generator=rng) for shape in shapes]
    every = [y.clone().requires_grad_() for y in given]
    wanted = torch.autograd.grad(hyena_medium(*every).sum(), every)
    for i in range(len(given)):
        alone = [y.clone().requires_grad_(i == j) for j, y in enumerate(given)]
        (found,) = torch.autograd.grad(hyena_medium(*alone).sum(), alone[i])
        assert torch.equal(found, wanted[i])


def arguments() -> dict[str, Any]:
    x = {name: torch.ones(2, 6, 10) for name in ("x1", "x2", "v", "grad")}
    x |= {"weight": torch.ones(3, 1, 7), "bias": torch.ones(6), "initial_state": torch.ones(2, 6, 6)}
    return x | {"grad_state": torch.ones(2, 6, 6), "padding_mask": None}


WRONG: list[tuple[str, Any, str]] = [
    ("grad", torch.ones(2, 6, 9), "got (2, 6, 9)"),
    ("grad", torch.ones(2, 6, 10).half(), "float32, got float16"),
    ("grad_state", torch.ones(2, 6, 7), "got (2, 6, 7)"),
    ("grad_state", torch.ones(2, 6, 6).half(), "float32, got float16"),
    ("weight", torch.ones(3, 1, 1025), "1 to 1024 taps, got (3, 1, 1025)"),
]


@pytest.mark.parametrize("argument, given, got", WRONG)
def test_wrong_gradients_are_refused_by_name(argument: str, given: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^hyena_medium(_backward)?: {argument}: expected .*{re.escape(got)}$"):
        torch.ops.gdn_cuda.hyena_medium_backward(**arguments() | {argument: given})
