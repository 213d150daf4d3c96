"""Inputs of rms_norm_gated for its tests on either device, and the comparison with the oracle."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from helpers import rel_rms
from rms_norm_oracle import NormOptions, oracle
from torch import Tensor

from gdn_cuda import rms_norm_gated

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BOUND = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 3e-3, torch.float16: 4e-4}
OPTIONS = (
    NormOptions(),
    NormOptions(activation="sigmoid", eps=1e-6),
    NormOptions(norm_before_gate=False),
    NormOptions(activation="sigmoid", norm_before_gate=False, eps=0.1),
)
# x / |x| is ±1 but for eps: a difference of gradients would cancel its whole gradient.
ONE_COLUMN = (
    NormOptions(group_size=1),
    NormOptions(group_size=1, eps=1e-8, norm_before_gate=False),
    NormOptions(group_size=1, eps=0.5),
)


def drawn(*shape: int, seed: int, dtype: torch.dtype, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def inputs(
    *shape: int,
    seed: int,
    dtypes: tuple[torch.dtype, torch.dtype | None, torch.dtype | None],
    device: str = "cpu",
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x, gate and weight with their dtypes; None where a dtype is None."""
    x, gate, weight = dtypes
    return (
        drawn(*shape, seed=seed, dtype=x, device=device),
        None if gate is None else drawn(*shape, seed=seed + 1, dtype=gate, device=device),
        None if weight is None else drawn(shape[-1], seed=seed + 2, dtype=weight, device=device),
    )


def run(
    given: tuple[Tensor, Tensor | None, Tensor | None], grad: Tensor, options: NormOptions
) -> tuple[Tensor, list[Tensor | None]]:
    """The output and the gradients, None for absent tensors. Views stay views."""
    leaves = [None if y is None else y.detach().requires_grad_() for y in given]
    out = rms_norm_gated(*leaves, **arguments(options))  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(out, [y for y in leaves if y is not None], grad))
    return out, [None if y is None else next(found) for y in leaves]


def arguments(options: NormOptions) -> dict[str, Any]:
    return asdict(options)


def check(given: tuple[Tensor, Tensor | None, Tensor | None], options: NormOptions, seed: int) -> None:
    """Results have the dtypes of their inputs, with errors of a single rounding."""
    x, gate, weight = given
    grad = drawn(*x.shape, seed=seed + 3, dtype=x.dtype, device=str(x.device))
    out, (dx, dgate, dweight) = run(given, grad, options)
    expected = oracle(x, gate, weight, grad, options)
    assert out.is_contiguous() and out.shape == x.shape
    for name, mine, theirs, like in zip(
        ("out", "x", "gate", "weight"), (out, dx, dgate, dweight), expected, (x, x, gate, weight), strict=True
    ):
        if like is None:
            assert mine is None
            continue
        assert mine is not None and mine.dtype == like.dtype, name
        error = rel_rms(mine, theirs) if mine.numel() else 0.0
        assert error < BOUND[like.dtype], f"{name}: {error}"
