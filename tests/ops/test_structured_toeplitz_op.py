"""Products with Toeplitz matrices as operators: values, gradients, broadcasting, dtypes, tracing, errors. CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import rel_rms
from torch import Tensor
from torch._subclasses import FakeTensorMode

from gdn_cuda.ops.structured_toeplitz import toeplitz_matvec, toeplitz_matvec_transpose
from gdn_cuda.reference import structured_toeplitz as oracle
from gdn_cuda.reference.structured_toeplitz_ops import matvec_by_transforms

PRODUCTS = (toeplitz_matvec, toeplitz_matvec_transpose)
# of c, r and x
SHAPES = [
    ((5,), (5,), (5,)),
    ((5,), (5,), (5, 3)),
    ((2, 1, 4), (3, 4), (4,)),
    ((2, 1, 4), (3, 4), (2, 1, 4, 2)),
    ((1, 4), (4,), (6, 4)),
    ((1,), (1,), (1, 2)),
]
EMPTY = [((0,), (0,), (0,)), ((0,), (0,), (0, 3)), ((3, 0), (0,), (3, 0)), ((0, 4), (4,), (4,)), ((4,), (4,), (4, 0))]
EMPTY += [((0, 1025), (1025,), (1025,)), ((1025,), (1025,), (1025, 0))]  # by transforms


def draw(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients(
    function: Any, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, rng: torch.Generator
) -> None:
    x = draw(shapes, dtype, rng)
    out, expected = function(*x), getattr(oracle, function.__name__)(*x)
    assert out.shape == expected.shape and rel_rms(out, expected) < 1e-14
    grad = torch.randn(out.shape, generator=rng, dtype=dtype)
    for ours, theirs in zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if x[0].numel() < 8:
        assert torch.autograd.gradcheck(function, x)
    if shapes == SHAPES[1]:
        assert torch.autograd.gradgradcheck(function, x)


@pytest.mark.parametrize("shapes", EMPTY)
def test_nothing_in_nothing_out(shapes: tuple[tuple[int, ...], ...], rng: torch.Generator) -> None:
    x = draw(shapes, torch.float32, rng)
    out = toeplitz_matvec(*x)
    assert out.shape == oracle.toeplitz_matvec(*x).shape
    gradients = torch.autograd.grad(out.sum(), x)
    assert all(not g.any() and g.shape == y.shape for g, y in zip(gradients, x, strict=True))


@pytest.mark.parametrize("function", PRODUCTS)
def test_first_column_wins(function: Any, rng: torch.Generator) -> None:
    c, r, x = (y.detach() for y in draw(((5,), (5,), (5,)), torch.float32, rng))
    mismatched = torch.cat([torch.tensor([torch.nan]), r[1:]]).requires_grad_()
    out = function(c, mismatched, x)
    assert torch.equal(out, function(c, r, x))
    gradient = torch.autograd.grad(out.sum(), mismatched)[0]
    assert gradient[0] == 0 and gradient[1:].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_dtypes_meet(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r, x = (y.detach().to(dtype) for y in draw(((5,), (5,), (5,)), torch.float64, rng))
    out = toeplitz_matvec(c, r, x)
    assert out.dtype == dtype and rel_rms(out, oracle.toeplitz_matvec(c, r, x)) < (4e-3 if dtype.itemsize == 2 else 1e-7)
    assert toeplitz_matvec(c.real, r, x).dtype == dtype
    assert toeplitz_matvec(c, r.real.double(), x).dtype == torch.promote_types(dtype, torch.float64)
    assert toeplitz_matvec(c, r, x.to(torch.complex64)).dtype == torch.complex64


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("function", PRODUCTS)
def test_long_ones_are_transformed(function: Any, dtype: torch.dtype, rng: torch.Generator) -> None:
    """Beyond 1024 rows there is no matrix."""
    c, r, x = (y.detach() for y in draw(((1100,), (1100,), (1100, 2)), dtype, rng))
    r[0] = torch.nan
    expected = getattr(oracle, function.__name__)(c, r, x)
    assert rel_rms(function(c, r, x), expected) < 1e-14
    assert rel_rms(function(c, r, x[:, 0]), expected[:, 0]) < 1e-14
    assert not torch.equal(function(c, r, x), expected)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 33])
def test_transforms(n: int, rng: torch.Generator) -> None:
    for dtype in (torch.float64, torch.complex128):
        c, r, x = (y.detach() for y in draw(((2, n), (n,), (2, n, 3)), dtype, rng))
        assert rel_rms(matvec_by_transforms(c, r, x), oracle.toeplitz_matvec(c, r, x)) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_tracing(dtype: torch.dtype, rng: torch.Generator) -> None:
    x = draw(SHAPES[3], dtype, rng)
    torch.library.opcheck(torch.ops.gdn_cuda.toeplitz_matvec.default, (*x, True))
    for function in PRODUCTS:
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        eager, traced = (torch.autograd.grad(f(*x).abs().sum(), x) for f in (function, compiled))
        assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))


def test_tracing_beyond_one_block() -> None:
    """And with `out`."""
    with FakeTensorMode():
        x = torch.empty(9000, device="cuda")
        assert toeplitz_matvec(x, x, x).shape == toeplitz_matvec(x, x, x, out=x).shape == x.shape
    c, out = torch.arange(3.0), torch.empty(3)
    torch.compile(lambda out: toeplitz_matvec(c, c, c, out=out), fullgraph=True, backend="aot_eager")(out)
    assert torch.equal(out, toeplitz_matvec(c, c, c))


BAD: dict[str, tuple[Any, str]] = {
    "length": (((5,), (4,), (5,)), r"r: expected \(…, 5\) as c has, got \(4,\)"),
    "one": (((5,), (1,), (5,)), r"r: expected \(…, 5\) as c has, got \(1,\)"),
    "rank": (((5,), (), (5,)), r"r: expected rank 1 or more, got \(\)"),
    "vector": (((5,), (5,), (4,)),
               r"x: expected \(…, 5\), or with more dimensions than the matrix \(…, 5, k\), got \(4,\)"),
    "columns": (((5,), (5,), (3, 5)),
                r"x: expected \(…, 5\), or with more dimensions than the matrix \(…, 5, k\), got \(3, 5\)"),
    "leading": (((2, 5), (3, 5), (5,)),
                r"r: expected leading dimensions that broadcast with those of c, got \(3, 5\)"),
    "leading of x": (((2, 5), (5,), (3, 5)),
                     r"x: expected leading dimensions that broadcast with those of c and r, got \(3, 5\)"),
}  # fmt: skip


@pytest.mark.parametrize("function", PRODUCTS)
@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(function: Any, name: str, rng: torch.Generator) -> None:
    shapes, message = BAD[name]
    with pytest.raises(ValueError, match=f"^{function.__name__}: {message}$"):
        function(*draw(shapes, torch.float32, rng))
    c = torch.zeros(3)
    with pytest.raises(ValueError, match=f"^{function.__name__}: r: expected a real or complex .* got torch.int64$"):
        function(c, c.long(), c)
