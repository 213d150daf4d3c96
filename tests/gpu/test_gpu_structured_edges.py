"""Overflow, what lies beyond the last step, and what is no number, of the structured operators on the GPU."""

from __future__ import annotations

import pytest
import structured_edges as edges
import torch

PAIRS = [torch.complex64, torch.complex128]
EVERY = [torch.float32, torch.float64, *PAIRS]


@pytest.mark.parametrize("dtype", PAIRS)
@pytest.mark.parametrize("L", [1, 3, 33, 130, 700, 5000])
def test_powers_that_grow(L: int, dtype: torch.dtype, seed: int) -> None:
    edges.check_growth(L, dtype, "cuda", seed)


@pytest.mark.parametrize("dtype", PAIRS)
def test_powers_that_overflow(dtype: torch.dtype) -> None:
    edges.check_overflow(dtype, "cuda")


@pytest.mark.parametrize("dtype", PAIRS)
def test_exponents_that_are_no_numbers(dtype: torch.dtype) -> None:
    edges.check_not_numbers(dtype, "cuda")


@pytest.mark.parametrize("dtype", EVERY)
def test_cauchy_sums_at_the_limits(dtype: torch.dtype) -> None:
    edges.check_cauchy(dtype, "cuda")


@pytest.mark.parametrize("dtype", EVERY)
def test_cauchy_gradients_at_infinity(dtype: torch.dtype) -> None:
    edges.check_cauchy_gradients_at_infinity(dtype, "cuda")
