"""conv_split_l2norm on CPU tensors against its definition in fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from split_cases import check, check_gradients, inputs, with_pool

from gdn_cuda import conv_split_l2norm

F64 = torch.float64
HEADS = (2, 3, 4, 5)
WAYS: list[dict[str, Any]] = [
    {},
    {"channels_last": False, "bias": False},
    {"l2norm": False},
    {"packed": [0, 2, 2, 3, 9]},
    {"packed": [0, 5, 7]},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("W", [1, 2, 4, 7])
def test_values_and_gradients(way: dict[str, Any], W: int, seed: int) -> None:
    x = inputs(1 if "packed" in way else 2, 9, HEADS, W, seed, dtype=F64, **way)
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


def test_gradcheck(seed: int) -> None:
    x = inputs(2, 4, (1, 1, 3, 2), 3, seed, dtype=F64)
    leaves = [y.requires_grad_() for y in (x.x, x.weight, x.bias) if y is not None]
    assert torch.autograd.gradcheck(lambda *y: conv_split_l2norm(*y, key_heads=1, value_heads=1, dk=3, dv=2), leaves)
