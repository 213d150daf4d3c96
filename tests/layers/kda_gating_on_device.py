"""fused_kda_gating by layers/gating, against the formulas in fp64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from devices import Device
from torch import Tensor

import gdn_cuda


def gating(device: Device, A_log: Tensor | None, dt_bias: Tensor | None, a: Tensor, lower_bound: float | None) -> Tensor:
    there = (None if x is None else x.to(device.name) for x in (A_log, dt_bias, a))
    with device.only("layers/gating"):
        return gdn_cuda.fused_kda_gating(*there, lower_bound).cpu()


def literal(A_log: Tensor | None, dt_bias: Tensor | None, a: Tensor, lower_bound: float | None) -> Tensor:
    heads, channels = a.shape[-2:]
    x = a.double() if dt_bias is None else a.double() + dt_bias.double().view(heads, channels)
    rate = torch.ones(heads, 1).double() if A_log is None else A_log.double().exp()[:, None]
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * x)
    return -rate * torch.where(x > 20, x, torch.logaddexp(x, torch.zeros_like(x)))


def near(found: Tensor, expected: Tensor, relative: float = 1e-5) -> bool:
    same = (found.double() - expected).abs() <= relative * expected.abs() + 1e-37
    return bool((same | (found.double() == expected)).all())


@pytest.mark.parametrize("lower_bound", [None, -5.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(0, 2, 8), (1, 1, 1), (300, 3, 24), (7, 2, 33), (2, 70, 2, 128), (3, 0, 2, 8), (2, 2, 0, 8)])
def test_sizes(
    shape: tuple[int, ...], dtype: torch.dtype, lower_bound: float | None, device: Device, rng: torch.Generator
) -> None:
    heads, channels = shape[-2:]
    a = torch.randn(shape, generator=rng).to(dtype)
    A_log, bias = torch.randn(heads, generator=rng).to(dtype), torch.randn(heads, channels, generator=rng)
    if a.numel() == 0:
        assert gdn_cuda.fused_kda_gating(A_log, bias, a, lower_bound).shape == shape
        return
    expected = literal(A_log, bias, a, lower_bound)
    for given in (bias, bias.flatten()):
        found = gating(device, A_log, given, a, lower_bound)
        assert found.dtype == torch.float32 and near(found, expected)
    assert near(gating(device, A_log, None, a, lower_bound), literal(A_log, None, a, lower_bound))
    assert near(gating(device, None, bias, a, -3.0), literal(None, bias, a, -3.0))


def test_views(device: Device, rng: torch.Generator) -> None:
    """Heads with gaps, tokens before sequences, a bias that is a part of a wider one."""
    wide = torch.randn(5, 3, 4, 40, generator=rng).bfloat16()
    a, bias = wide[..., 8:32].transpose(0, 1), torch.randn(4, 40, generator=rng)[:, :24]
    for lower_bound in (None, -5.0):
        found = gating(device, torch.zeros(4), bias, a, lower_bound)
        assert near(found, literal(torch.zeros(4), bias.contiguous(), a, lower_bound)) and found.is_contiguous()


@pytest.mark.parametrize("A_log", [-80.0, 0.0, math.log(201), 70.0, 95.0])
def test_extreme_values(A_log: float, device: Device) -> None:
    values = [-torch.inf, -300.0, -100.0, -85.0, -20.0, -1.0, 0.0, 1e-4, 3.0, 19.0, 21.0, 1e4, torch.inf]
    for dtype in (torch.float32, torch.bfloat16):
        a, rates = torch.tensor(values, dtype=dtype)[None, :, None].repeat(1, 1, 8), torch.full((13,), A_log)
        expected = literal(rates, None, a, None)
        assert near(gating(device, rates, None, a, None), expected.float().double(), 3e-5)
        if A_log < 80:
            bounded = literal(rates, None, a, -5.0)
            assert ((gating(device, rates, None, a, -5.0).double() - bounded).abs() < 1e-5).all()


def test_nan_and_infinite_rates(device: Device) -> None:
    a = torch.tensor([torch.nan, 0.0, 1.0, -2.0]).expand(1, 2, 4)
    for rates, bound in ((torch.zeros(2), None), (torch.zeros(2), -5.0), (None, -5.0)):
        assert torch.equal(gating(device, rates, None, a, bound).isnan(), a.isnan())
    assert gating(device, torch.tensor([torch.nan, 0.0]), None, a, None)[0, :, 1:].isnan().any(-1).tolist() == [True, False]
    found = gating(device, torch.tensor([torch.inf, 200.0]), None, a, -4.0)[0, :, 1:]
    assert torch.equal(found, torch.tensor([-2.0, -4.0, 0.0]).expand(2, 3))


def refused(**changes: Any) -> str:
    x: dict[str, Any] = {"A_log": torch.zeros(2), "dt_bias": torch.zeros(2, 8), "a": torch.zeros(1, 3, 2, 8)} | changes
    with pytest.raises(ValueError) as error:
        gdn_cuda.fused_kda_gating(**x)
    assert str(error.value).startswith("fused_kda_gating: ")
    return str(error.value).split(": ")[1]


def test_refusals() -> None:
    for bound in (0.0, 1.0, math.nan, -math.inf, -1e39):
        assert refused(lower_bound=bound) == "lower_bound"
    assert refused(A_log=None) == "A_log" and refused(A_log=torch.zeros(8)) == "A_log"
    for bias in (torch.zeros(8), torch.zeros(8, 2), torch.zeros(15), torch.zeros(2, 16)[:, ::2]):
        assert refused(dt_bias=bias) == "dt_bias"
    for a in (torch.zeros(2, 8), torch.zeros(1, 1, 3, 2, 8), torch.zeros(1, 3, 8, 2).mT, torch.zeros(1, 3, 2, 8).int()):
        assert refused(a=a) == "a"
