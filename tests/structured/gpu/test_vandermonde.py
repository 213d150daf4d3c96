"""log_vandermonde and its transpose on the GPU against their definitions in fp64: phases to 5e7 rad, any length, gradients."""

from __future__ import annotations

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import log_vandermonde, log_vandermonde_transpose
from gdn_cuda.reference import structured_vandermonde as oracle

BOUNDS = {torch.complex64: 1e-6, torch.complex128: 1e-14}
SHAPES = [
    ((5,), (5,), 7),
    ((3, 1, 20), (2, 20), 1000),
    ((200, 32), (200, 32), 16384),
    ((2, 33), (33,), 20000),
    ((300, 5), (300, 5), 1025),
    ((150, 18), (150, 18), 4096),
    ((150, 18), (150, 18), 12289),
    ((4, 0), (0,), 3),
    ((3, 17), (17,), 0),
]


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), dtype=dtype, device="cuda")


def exponents(shape: tuple[int, ...], phase: float, L: int, dtype: torch.dtype, seed: int) -> Tensor:
    x = draw(shape, torch.complex128, seed)
    return torch.complex(-2 * x.real.abs() / max(L, 1), x.imag * phase / max(L, 1)).to(dtype)


@pytest.mark.parametrize("phase", [1e-5, 1e-3, 1e-1])
def test_small_angles_keep_full_precision(phase: float, seed: int) -> None:
    """With imaginary residues the sum has only sines, which are as small as the angles."""
    L = 1000
    x = exponents((40, 1), phase, L, torch.complex64, seed)
    v = 1j * draw((40, 1), torch.float32, seed + 1)
    out, expected = log_vandermonde(v, x, L), oracle.log_vandermonde(v, x, L)
    assert bool(((out - expected).abs() <= 1e-6 * expected.abs()).all())


def test_residues_near_overflow() -> None:
    v, x = torch.tensor([2e38 + 0j], device="cuda"), torch.tensor([-1 + 0j], device="cuda")
    out = log_vandermonde(v, x, 40)
    expected = oracle.log_vandermonde(v.to(torch.complex128), x.to(torch.complex128), 40)
    assert out[0] == torch.inf and rel_rms(out[1:] * 1e-30, expected[1:] * 1e-30) < 1e-6


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("phase", [1.0, 1e3, 1e6, 5e7])
@pytest.mark.parametrize("v_shape,x_shape,L", SHAPES)
def test_values_and_gradients(
    v_shape: tuple[int, ...], x_shape: tuple[int, ...], L: int, phase: float, dtype: torch.dtype, seed: int
) -> None:
    v, x = draw(v_shape, dtype, seed).requires_grad_(), exponents(x_shape, phase, L, dtype, seed + 1).requires_grad_()
    out, expected = log_vandermonde(v, x, L), oracle.log_vandermonde(v, x, L)
    assert out.shape == expected.shape
    if out.numel() == 0 or v.numel() == 0:
        assert not out.any()
        return
    assert rel_rms(out, expected) < BOUNDS[dtype]
    grad = draw(tuple(out.shape), out.dtype, seed + 2)
    for ours, theirs in zip(torch.autograd.grad(out, (v, x), grad), torch.autograd.grad(expected, (v, x), grad), strict=True):
        assert rel_rms(ours, theirs) < 2 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("v_shape,x_shape,L", SHAPES[:4])
def test_transpose(v_shape: tuple[int, ...], x_shape: tuple[int, ...], L: int, dtype: torch.dtype, seed: int) -> None:
    v, x = draw(v_shape, dtype, seed).requires_grad_(), exponents(x_shape, 1e6, L, dtype, seed + 1).requires_grad_()
    u = draw((*x_shape[:-1], L), v.real.dtype, seed + 2).requires_grad_()
    out, expected = log_vandermonde_transpose(u, v, x, L), oracle.log_vandermonde_transpose(u, v, x, L)
    assert rel_rms(out, expected) < 2 * BOUNDS[dtype]
    grad = draw(tuple(out.shape), out.dtype, seed + 3)
    wide = torch.autograd.grad(expected, (u, v, x), grad.to(expected.dtype))
    for ours, theirs in zip(torch.autograd.grad(out, (u, v, x), grad), wide, strict=True):
        assert rel_rms(ours, theirs) < 4 * BOUNDS[dtype]


def test_the_logarithm_of_zero(seed: int) -> None:
    x = torch.tensor([complex(float("-inf"), 0.0), -0.1 + 1j], device="cuda", dtype=torch.complex64)
    v = torch.ones(2, device="cuda", dtype=torch.complex64)
    assert rel_rms(log_vandermonde(v, x, 40), oracle.log_vandermonde(v, x, 40)) < 1e-6
