"""rms_norm_gated on CPU tensors against its definition in fp64: values, gradients, strides, extremes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rms_norm_cases import DTYPES, ONE_COLUMN, OPTIONS, arguments, check, drawn, inputs
from rms_norm_oracle import NormOptions
from torch import Tensor

from gdn_cuda import rms_norm_gated

F64 = torch.float64


@pytest.mark.parametrize(
    "options", [*OPTIONS, *ONE_COLUMN, NormOptions(group_size=4), NormOptions(norm_before_gate=False, group_size=3)], ids=str
)
def test_values_and_gradients(options: NormOptions, seed: int) -> None:
    check(inputs(2, 3, 12, seed=seed, dtypes=(F64, F64, F64)), options, seed)
    check(inputs(5, 12, seed=seed, dtypes=(F64, F64, None)), options, seed)
    check(inputs(12, seed=seed, dtypes=(F64, None, F64)), options, seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixed_dtypes(dtype: torch.dtype, seed: int) -> None:
    for gate in (*DTYPES, None):
        for weight in (*DTYPES, None):
            check(inputs(3, 2, 10, seed=seed, dtypes=(dtype, gate, weight)), NormOptions(), seed)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (2, 0, 3), (1,), (1, 1), (0,)])
def test_sizes_of_0_and_1(shape: tuple[int, ...], seed: int) -> None:
    for options in OPTIONS:
        for eps in (options.eps, 0.5):
            check(inputs(*shape, seed=seed, dtypes=(F64, F64, F64)), replace(options, eps=eps), seed)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck(options: NormOptions, seed: int) -> None:
    leaves = [y.requires_grad_() for y in inputs(2, 3, 6, seed=seed, dtypes=(F64, F64, F64)) if y is not None]
    assert torch.autograd.gradcheck(lambda *given: rms_norm_gated(*given, **arguments(options)), leaves)


def test_views_of_a_projection(seed: int) -> None:
    wide = drawn(2, 3, 4 * 20, seed=seed, dtype=torch.float32)
    x, gate = wide[..., 8:32].unflatten(-1, (3, 8)), wide[..., 40:64].unflatten(-1, (3, 8)).transpose(1, 2).transpose(1, 2)
    weight = drawn(16, seed=seed, dtype=torch.float32)[::2]
    check((x, gate, weight), NormOptions(), seed)
    check((x.mT, gate.mT, weight[:3]), NormOptions(), seed)


def test_equals_other_norms(seed: int) -> None:
    """torch's rms_norm without a gate, and the formulas of Qwen3-Next and Mamba-2."""
    x, gate, weight = (y for y in inputs(4, 5, 16, seed=seed, dtypes=(F64, F64, F64)))
    assert gate is not None and weight is not None
    norm = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    torch.testing.assert_close(rms_norm_gated(x, None, weight, 1e-6), norm)
    silu = torch.nn.functional.silu(gate)
    torch.testing.assert_close(rms_norm_gated(x, gate, weight, 1e-6, "swish"), norm * silu)
    grouped = torch.nn.functional.rms_norm((x * silu).unflatten(-1, (2, 8)), (8,), None, 1e-6).flatten(-2) * weight
    torch.testing.assert_close(rms_norm_gated(x, gate, weight, 1e-6, norm_before_gate=False, group_size=8), grouped)


def test_rows_of_zeros() -> None:
    zeros, ones = torch.zeros(2, 4, requires_grad=True), torch.ones(4)
    out = rms_norm_gated(zeros, None, ones)
    (grad,) = torch.autograd.grad(out.sum(), zeros)
    assert not out.any() and torch.allclose(grad, torch.full_like(grad, 1e-5**-0.5))
    assert bool(rms_norm_gated(zeros, None, ones, 0.0).isnan().all())


@pytest.mark.parametrize("size", [1e30, 3e38, 1e-30])
def test_squares_beyond_fp32(size: float, seed: int) -> None:
    x = drawn(3, 8, seed=seed, dtype=torch.float32).sign() * size
    out = rms_norm_gated(x, None, None, 0.0)
    torch.testing.assert_close(out, x.sign())


def test_extreme_gates() -> None:
    x, gate = torch.ones(1, 4), torch.tensor([[torch.inf, -torch.inf, torch.nan, -1e4]])

    def check(activation: str, expected: Tensor) -> None:
        torch.testing.assert_close(rms_norm_gated(x, gate, None, 0.0, activation), expected, equal_nan=True)

    check("sigmoid", torch.tensor([[1.0, 0.0, torch.nan, 0.0]]))
    check("silu", torch.tensor([[torch.inf, torch.nan, torch.nan, 0.0]]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nonfinite_values_stay_in_their_row(bad: float, seed: int) -> None:
    x, gate, weight = inputs(4, 8, seed=seed, dtypes=(F64, F64, F64))
    assert gate is not None
    clean = rms_norm_gated(x, gate, weight)
    for spoilt in (x, gate):
        spoilt[2, 3] = bad
        out = rms_norm_gated(x, gate, weight)
        assert not out[2].isfinite().all() and torch.equal(out[[0, 1, 3]], clean[[0, 1, 3]])
        spoilt[2, 3] = 1
        clean = rms_norm_gated(x, gate, weight)


@pytest.mark.parametrize("mapped", [(0, 0, None), (1, None, None), (None, 1, 0), (0, 1, 1), (None, None, 0)])
def test_vmap(mapped: tuple[int | None, ...], seed: int) -> None:
    sizes = [[3, 6], [3, 6], [6]]
    given = []
    for i, (shape, d) in enumerate(zip(sizes, mapped, strict=True)):
        shape = shape if d is None else [*shape[:d], 4, *shape[d:]]
        given.append(drawn(*shape, seed=seed + i, dtype=F64))
    found = torch.vmap(rms_norm_gated, in_dims=mapped)(*given)
    each = [[y if d is None else y.select(d, i) for y, d in zip(given, mapped, strict=True)] for i in range(4)]
    torch.testing.assert_close(found, torch.stack([rms_norm_gated(*x) for x in each]))

    def loss(*x: Tensor) -> Tensor:
        return rms_norm_gated(*x).square().sum()

    gradients = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=mapped)(*given)
    expected = zip(*(torch.func.grad(loss, argnums=(0, 1, 2))(*x) for x in each), strict=True)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs))
