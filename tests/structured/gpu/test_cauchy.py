"""cauchy_kernel and cauchy_conj on the GPU against their definitions in fp64: values, gradients, poles near or on points."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import cauchy_conj, cauchy_kernel
from gdn_cuda.reference import structured_cauchy as oracle

BOUNDS = {torch.float32: 1e-6, torch.complex64: 1e-6, torch.float64: 1e-14, torch.complex128: 1e-14,
          torch.bfloat16: 4e-3, torch.float16: 5e-4}  # fmt: skip
CASES = [(cauchy_kernel, dtype) for dtype in BOUNDS] + [(cauchy_conj, torch.complex64), (cauchy_conj, torch.complex128)]
SHAPES = [
    ((13,), (7,), (13,)),
    ((3, 1, 200), (2, 700), (200,)),
    ((16, 257), (1030,), (257,)),  # many rows over the same poles
    ((4, 2, 33), (2, 5000), (2, 33)),
    ((1,), (1,), (1,)),
    ((4, 0), (3,), (4, 0)),
]


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide, device="cuda").to(dtype)


def size_of_terms(function: Any, v: Tensor, points: Tensor, poles: Tensor) -> Tensor:
    """Σ |terms| of each entry, without poles on points: one pole close to a point may dominate a sum."""
    v, points, poles = (x.detach().to(torch.complex128) for x in (v, points, poles))
    if function is cauchy_conj:
        v, poles = (torch.cat([x, x.conj()], -1) for x in (v, poles))
    distance = (points[..., :, None] - poles[..., None, :]).abs()
    return torch.where(distance == 0, 0.0, v.abs()[..., None, :] / distance).sum(-1)


def assert_entries(out: Tensor, expected: Tensor, size: Tensor, bound: float) -> None:
    """Finite entries must be within bound · size, infinite ones have the same sign; values are clamped to the dtype's range."""
    if out.is_complex():
        out, expected, size = torch.view_as_real(out), torch.view_as_real(expected), size[..., None]
    limits = torch.finfo(out.dtype)
    out, expected = out.double(), expected.double()
    infinite = expected.isinf()
    assert torch.equal(out[infinite], expected[infinite])
    ours, theirs = (x.clamp(-limits.max, limits.max)[~infinite] for x in (out, expected))
    assert ((ours - theirs).abs() <= (bound * size + limits.tiny * limits.eps).expand_as(out)[~infinite]).all()


@pytest.mark.parametrize("function,dtype", CASES)
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients(function, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], seed: int) -> None:  # type: ignore[no-untyped-def]
    x = [draw(shape, dtype, seed + i).requires_grad_() for i, shape in enumerate(shapes)]
    out, expected = function(*x), getattr(oracle, function.__name__)(*x)
    assert out.dtype == dtype and out.shape == expected.shape
    assert_entries(out.detach(), expected.detach(), size_of_terms(function, *x), 4 * BOUNDS[dtype])
    if dtype in (torch.bfloat16, torch.float16) or out.numel() == 0:
        return
    grad = draw(tuple(out.shape), dtype, seed + 9)
    wide = [y.detach().to(expected.dtype).requires_grad_() for y in x]
    exact = torch.autograd.grad(getattr(oracle, function.__name__)(*wide), wide, grad.to(expected.dtype))
    for ours, theirs in zip(torch.autograd.grad(out, x, grad), exact, strict=True):
        coincide = theirs.isnan()  # random values in fp32 may coincide
        assert torch.equal(ours.isnan(), coincide) and rel_rms(ours[~coincide], theirs[~coincide]) < 10 * BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("L", [1024, 16384])
def test_points_of_s4(dtype: torch.dtype, L: int, seed: int) -> None:
    k = torch.arange(L // 2, dtype=torch.float64, device="cuda")
    z = torch.complex(torch.zeros_like(k), 2 * torch.tan(math.pi * k / L)).to(dtype)
    n = torch.arange(32, dtype=torch.float64, device="cuda")
    w = torch.complex(torch.full_like(n, -0.5), math.pi * n).to(dtype)
    v = draw((8, 32), dtype, seed)
    assert rel_rms(cauchy_conj(v, z, w), oracle.cauchy_conj(v, z, w)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_poles_close_to_or_on_points(dtype: torch.dtype, seed: int) -> None:
    v, w = draw((64,), dtype, seed), draw((64,), dtype, seed + 1)
    z = torch.cat([w[:3] * (1 + 1e-6), w[3:6].conj(), w[6:9], w[9:12] * 1e12, w[12:15] * 1e-25])
    for function in (cauchy_kernel, cauchy_conj):
        out, expected = function(v, z, w), getattr(oracle, function.__name__)(v, z, w)
        finite = expected.real.isfinite() & expected.imag.isfinite()
        assert rel_rms(out[finite], expected[finite]) < BOUNDS[dtype]
        ours, theirs = (torch.view_as_real(x[~finite]) for x in (out, expected))
        assert torch.equal(ours.isinf(), theirs.isinf()) and torch.equal(
            ours.isinf() * ours.sign(), theirs.isinf() * theirs.sign()
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_only_gradients_of_coinciding_points_and_poles_are_nan(dtype: torch.dtype) -> None:
    x = [torch.tensor(values, dtype=dtype, device="cuda").requires_grad_() for values in ([1.0, 2.0], [1.0, 4.0], [1.0, 3.0])]
    out = cauchy_kernel(*x)
    for grad in torch.autograd.grad(out, x, torch.ones_like(out)):
        assert grad.isnan().tolist() == [True, False]


def test_strides_and_graphs(seed: int) -> None:
    v, z, w = (draw(shape, torch.complex64, seed)[..., ::2] for shape in ((3, 40), (3, 600), (40,)))
    expected = cauchy_conj(v.contiguous(), z.contiguous(), w.contiguous())
    assert torch.equal(cauchy_conj(v, z, w), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = cauchy_conj(v, z, w)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "case",
    [
        "small residues",
        "small residues of close poles",
        "one small residue",
        "a far pole",
        "far points",
        "close poles",
        "a pole on a point, and infinities",
    ],
)
def test_many_rows_at_the_limits(case: str, seed: int) -> None:
    """Inputs whose tf32 parts overflow or underflow."""
    v, points = draw((16, 300), torch.float32, seed), torch.arange(70.0, device="cuda")
    poles = torch.arange(300.0, device="cuda") + 0.25 + 0.5 * torch.rand(300, device="cuda")
    if case == "small residues":
        v = v * 1e-37
    elif case == "small residues of close poles":
        v, points, poles = v * 1e-37, points * 1e-13, poles * 1e-13
    elif case == "one small residue":  # of a pole that is much closer to a point than the others
        v[3, 5], poles[5], points[9] = 1e-35, 1e-22, 3e-22
        v[3, 6:] *= 1e-14
        v[3, :5] = 0
    elif case == "a far pole":
        poles[2] = 1e33
    elif case == "far points":
        points, poles = points * 1e34, poles * 1e34
    elif case == "close poles":
        poles[:70] = torch.nextafter(points, torch.full_like(points, math.inf))
    else:
        poles[3], poles[1], points[7] = points[5], math.inf, -math.inf
    out, expected = cauchy_kernel(v, points, poles), oracle.cauchy_kernel(v.double(), points.double(), poles.double())
    assert_entries(out, expected, size_of_terms(cauchy_kernel, v, points, poles).nan_to_num(0.0), 1e-6)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", ["close to 0", "close to poles", "among small poles", "among large ones"])
@pytest.mark.parametrize("rows", [1, 4])
def test_points_on_the_imaginary_axis(rows: int, case: str, sign: int, seed: int) -> None:
    y = sign * 2 * torch.tan(torch.arange(700, dtype=torch.float64) * (math.pi / 1400))
    w = torch.complex(torch.full((150,), -0.005, dtype=torch.float64), math.pi * 0.05 * torch.arange(150.0).double())
    if case == "close to 0":
        y = y * 1e-9
    elif case == "close to poles":
        w = torch.complex(torch.full_like(w.real, -1e-3), y[:150] * (1 + 1e-5 * w.imag))
    else:
        w = w * (1e-6 if "small" in case else 1e6)
    z, w = torch.complex(torch.zeros_like(y), y).to("cuda", torch.complex64), w.to("cuda", torch.complex64)
    v = draw((rows, 150), torch.complex64, seed)
    assert_entries(cauchy_conj(v, z, w), oracle.cauchy_conj(v, z, w), size_of_terms(cauchy_conj, v, z, w), 1e-6)


def pairs_case(case: str, seed: int) -> tuple[Tensor, Tensor]:
    """Points and poles for every formula of pairs, and for the limits of each."""
    z, w = draw((1500,), torch.complex128, seed), draw((3, 19), torch.complex128, seed + 1)
    on_axis = torch.complex(torch.zeros_like(z.real), z.imag)
    if case == "unit circle":
        z = z / z.abs()
    elif case == "far from 0":
        z, w = 100 + 1e-3 * z, 100 + 1e-3 * w
    elif case == "almost real poles":
        w = torch.complex(w.real, 1e-6 * w.imag)
    elif case == "real poles":
        w = torch.complex(w.real, torch.zeros_like(w.real))
    elif case == "close to poles":
        w = w.to(torch.complex64).to(torch.complex128)
        z = w[0].repeat(79)[:1500] * (1 + 1e-5 * z)
    elif case == "out of reach":
        z = 1e6 * z
    elif case == "one pole out of range":
        w[:, 3] *= 1e5
    elif case == "small values":
        z, w = 1e-12 * z, 1e-12 * w
    elif case == "one point off the axis, far away":
        z = torch.where(torch.arange(1500, device="cuda") == 5, 1e9 * (1 + 1j), on_axis)
    elif case == "first on the axis, then not":
        z = torch.where(torch.arange(1500, device="cuda") < 700, on_axis, z)
    elif case == "on the axis at the end":
        z = torch.where(torch.arange(1500, device="cuda") > 700, on_axis, z)
    elif case == "small poles, points on the axis":
        z, w = on_axis, 1e-8 * w
    elif case == "an odd number of points":
        z = z[:129]
    return z.to(torch.complex64), w.to(torch.complex64)


PAIRS_CASES = [
    "unit circle",
    "far from 0",
    "almost real poles",
    "real poles",
    "close to poles",
    "out of reach",
    "one pole out of range",
    "small values",
    "one point off the axis, far away",
    "first on the axis, then not",
    "on the axis at the end",
    "small poles, points on the axis",
    "an odd number of points",
]


@pytest.mark.parametrize("case", PAIRS_CASES)
@pytest.mark.parametrize("rows", [3, 600])  # one or eight poles per block
def test_pairs(case: str, rows: int, seed: int) -> None:
    z, w = pairs_case(case, seed)
    w = w.repeat(rows // 3, 1).requires_grad_()
    v = draw((rows, 19), torch.complex64, seed + 2).requires_grad_()
    out, expected = cauchy_conj(v, z, w), oracle.cauchy_conj(v, z, w)
    assert rel_rms(out.detach(), expected.detach()) < BOUNDS[torch.complex64]
    grad = draw(tuple(out.shape), torch.complex64, seed + 3)
    wide = [x.detach().to(expected.dtype).requires_grad_() for x in (v, w)]
    exact = torch.autograd.grad(oracle.cauchy_conj(wide[0], z.to(expected.dtype), wide[1]), wide, grad.to(expected.dtype))
    for ours, theirs in zip(torch.autograd.grad(out, (v, w), grad), exact, strict=True):
        assert rel_rms(ours, theirs) < 10 * BOUNDS[torch.complex64]


@pytest.mark.parametrize("size", [1, 1e-27, 1e25, 1e30])
@pytest.mark.parametrize("case", PAIRS_CASES)
@pytest.mark.parametrize("rows", [1, 8])  # four rows use the same reciprocals
def test_pairs_with_residues_of_any_size(case: str, size: float, rows: int, seed: int) -> None:
    z, w = pairs_case(case, seed)
    v = draw((rows, w.numel()), torch.complex64, seed + 2) * size
    v[1:] /= 100
    for repeats in (1, 3):  # poles in one tile and in several
        poles, own = w.flatten().repeat(repeats), v.repeat(1, repeats)
        out, expected = cauchy_conj(own, z, poles), oracle.cauchy_conj(own, z, poles)
        assert_entries(out, expected, size_of_terms(cauchy_conj, own, z, poles), 1e-6)
