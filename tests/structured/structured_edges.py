"""Overflow, powers beyond the last step, infinities and NaN. For tests on a CPU and on a GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gdn_cuda import cauchy_conj, cauchy_kernel, log_vandermonde, log_vandermonde_transpose
from gdn_cuda.reference import structured_cauchy, structured_vandermonde

BOUNDS = {torch.complex64: 2e-6, torch.complex128: 2e-14}  # of one entry; a power is a product of up to four


def growing(L: int, dtype: torch.dtype, device: str) -> Tensor:
    """Twenty exponents: powers that grow to 1e30 (1e290) by the last step, stay, decay, and are 0 after the first step."""
    top = (290 if dtype == torch.complex128 else 30) * math.log(10) / max(L - 1, 1)
    sizes = torch.tensor([top, 0.5 * top, 0.0, -1.0, -math.inf] + [-50.0] * 11 + [top] * 4, dtype=torch.float64)
    return torch.complex(sizes, torch.arange(20, dtype=torch.float64)).to(dtype).to(device)


def check_growth(L: int, dtype: torch.dtype, device: str, seed: int) -> None:
    """Powers overflow beyond the last step, not up to it: results and gradients must be finite and exact."""
    generator, eps = torch.Generator().manual_seed(seed), BOUNDS[dtype]
    u = torch.randn(2, L, generator=generator, dtype=torch.float64).to(torch.empty(0, dtype=dtype).real.dtype).to(device)
    x = growing(L, dtype, device).requires_grad_()
    v = torch.ones_like(x).requires_grad_()
    out = log_vandermonde_transpose(u, v, x, L)
    powers = structured_vandermonde.powers("", x.detach().to(torch.complex128), L)
    terms = u.double()[:, None, :] * powers
    assert ((out - terms.sum(-1)).abs() <= eps * terms.abs().sum(-1)).all()
    (dx,) = torch.autograd.grad(out, x, torch.ones_like(out))
    terms = torch.arange(L, device=device) * terms
    assert ((dx - terms.sum(-1).sum(0).conj()).abs() <= 4 * eps * terms.abs().sum((-1, 0)) + 1e-300).all()

    out = log_vandermonde(v, x, L)
    grad = u[0]
    assert ((out - 2 * powers.real.sum(0)).abs() <= 2 * eps * powers.abs().sum(0)).all()
    (dv,) = torch.autograd.grad(out, v, grad)
    terms = grad * powers
    assert ((dv - 2 * terms.sum(-1).conj()).abs() <= 4 * eps * terms.abs().sum(-1)).all()


def check_overflow(dtype: torch.dtype, device: str) -> None:
    """Entries that overflow are infinite or NaN, and do not affect others."""
    largest, L = torch.finfo(dtype).max, 3000
    x = torch.tensor([[2 * math.log(largest) / L + 0.5j, -0.1 + 1j], [-0.01 + 2j, -0.2]], dtype=dtype, device=device)
    v = torch.ones_like(x)
    out = log_vandermonde(v, x, L)
    sizes = structured_vandermonde.powers("", x.to(torch.complex128), L).abs().sum(-2)
    expected = structured_vandermonde.log_vandermonde(v, x, L)
    fits = sizes < largest / 8
    assert 1400 < fits[0].sum() < 1600 and fits[1].all()
    assert ((out - expected).abs() <= 4 * BOUNDS[dtype] * sizes)[fits].all()
    assert not out[expected.abs() > largest].isfinite().any()
    u = torch.ones(L, dtype=out.dtype, device=device)
    assert log_vandermonde_transpose(u, v, x, L).isfinite().tolist() == [[False, True], [True, True]]


def check_nan(dtype: torch.dtype, device: str) -> None:
    """NaN gives NaN, except that e^{x 0} is 1."""
    nan = math.nan
    for x in (complex(nan, 1.0), complex(-0.1, nan), complex(-0.1, math.inf)):
        exponents = torch.tensor([[x, -0.1], [-0.1, -0.1]], dtype=dtype, device=device)
        out = log_vandermonde(torch.ones_like(exponents), exponents, 40)
        assert out[0, 1:].isnan().all() and out[0, 0] == 4 and out[1].isfinite().all()
        found = log_vandermonde_transpose(out[1], torch.ones_like(exponents), exponents, 40).real
        assert found.isnan().tolist() == [[True, False], [False, False]]


def cauchy_cases(dtype: torch.dtype) -> dict[str, tuple[Any, Any, Any]]:
    """Residues, points and poles."""
    limits = torch.finfo(dtype)
    large, small = limits.max, limits.tiny
    cases: dict[str, tuple[Any, Any, Any]] = {
        "a point at infinity": ([1.0, 2.0], [math.inf, -math.inf], [1.0, -2.0]),
        "no residue at a pole too close for a reciprocal": ([0.0, 1.0], [0.0], [small / 16, 3.0]),
        "a residue there": ([small, 1.0], [0.0], [small / 16, 3.0]),
        "a term that overflows": ([large] + [1.0] * 199, [1.0, 5.0], [0.9] + [3.0] * 199),
        "many of them": ([-large] * 200, [1.0, 5.0], [0.9] * 200),
        "not a number": ([math.nan] + [1.0] * 99, [1.0, 5.0], [0.5] * 100),
    }
    if dtype in (torch.float32, torch.complex64):  # there is nothing wider than fp64
        cases["two overflowing terms that cancel"] = ([large, -large] + [0.0] * 198, [1.0], [0.9, 0.9] + [3.0] * 198)
    if dtype.is_complex:
        cases["a point at i times infinity"] = ([1.0, 2.0 + 1j], [complex(0.0, math.inf)], [1.0, -2.0 + 1j])
        cases["a large point"] = ([1.0, 2.0 + 1j], [complex(1e30, 1e30)], [1.0, -2.0 + 1j])
    return cases


def check_cauchy(dtype: torch.dtype, device: str) -> None:
    for name, values in cauchy_cases(dtype).items():
        x = [torch.tensor(part, dtype=dtype, device=device) for part in values]
        for function in (cauchy_kernel, cauchy_conj) if dtype.is_complex else (cauchy_kernel,):
            expected = getattr(structured_cauchy, function.__name__)(*x).to(dtype)
            rounding = torch.finfo(dtype).max * 1e-14 if "cancel" in name else 0.0  # of larger terms in fp64
            torch.testing.assert_close(
                function(*x), expected, rtol=1e-5, atol=rounding, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
            )


def check_cauchy_gradients_at_infinity(dtype: torch.dtype, device: str) -> None:
    """A point at infinity contributes nothing."""
    x = [torch.tensor(part, dtype=dtype, device=device).requires_grad_() for part in ([1.0, 2.0], [math.inf, 1.0], [3.0, -2.0])]
    out = cauchy_kernel(*x)
    dv, dpoints, dpoles = torch.autograd.grad(out, x, torch.ones_like(out))
    assert dpoints[0] == 0 and all(part.isfinite().all() for part in (dv, dpoints, dpoles))
    torch.testing.assert_close(dv, 1 / (x[1][1] - x[2]))


PAIRS = [torch.complex64, torch.complex128]
EVERY = [torch.float32, torch.float64, *PAIRS]


class StructuredEdges:
    device: str

    @pytest.mark.parametrize("dtype", PAIRS)
    @pytest.mark.parametrize("L", [1, 3, 33, 130, 700, 5000])
    def test_powers_that_grow(self, L: int, dtype: torch.dtype, seed: int) -> None:
        check_growth(L, dtype, self.device, seed)

    @pytest.mark.parametrize("dtype", PAIRS)
    def test_powers_that_overflow(self, dtype: torch.dtype) -> None:
        check_overflow(dtype, self.device)

    @pytest.mark.parametrize("dtype", PAIRS)
    def test_nan_exponents(self, dtype: torch.dtype) -> None:
        check_nan(dtype, self.device)

    @pytest.mark.parametrize("dtype", EVERY)
    def test_cauchy_sums_at_the_limits(self, dtype: torch.dtype) -> None:
        check_cauchy(dtype, self.device)

    @pytest.mark.parametrize("dtype", EVERY)
    def test_cauchy_gradients_at_infinity(self, dtype: torch.dtype) -> None:
        check_cauchy_gradients_at_infinity(dtype, self.device)
