"""Products with Toeplitz matrices as operators: values, gradients, broadcasting, dtypes, tracing, errors. CPU tensors."""

from __future__ import annotations

import itertools
from typing import Any

import literal
import pytest
import scipy.linalg
import torch
from helpers import rel_rms
from torch import Tensor
from torch._subclasses import FakeTensorMode

from gdn_cuda.reference import structured_toeplitz as oracle
from gdn_cuda.structured.reference_toeplitz_operators import matvec_by_transforms
from gdn_cuda.structured.toeplitz import toeplitz_matvec, toeplitz_matvec_transpose

PRODUCTS = (toeplitz_matvec, toeplitz_matvec_transpose)
# shapes of c, r and x
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
    by_sums = literal.toeplitz_matvec(
        *x, function is toeplitz_matvec_transpose
    )  # independent, as CPU tensors run the oracle itself
    assert out.shape == expected.shape and rel_rms(out, by_sums) < 1e-14
    grad = torch.randn(out.shape, generator=rng, dtype=dtype)
    for ours, theirs in zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if x[0].numel() < 8:
        assert torch.autograd.gradcheck(function, x)
    if shapes == SHAPES[1]:
        assert torch.autograd.gradgradcheck(function, x)


# shapes of c (…,n), r (…,m) and x, which has m elements, or n for the transpose
RECTANGULAR = [
    ((5,), (3,), (3,), (5,)),
    ((3,), (5,), (5, 2), (3, 2)),
    ((2, 1, 1), (3, 6), (6,), (1,)),
    ((2, 1, 6), (3, 1), (2, 3, 1, 2), (2, 3, 6, 2)),
    ((1, 4), (7,), (6, 7), (6, 4)),
    ((1030,), (4,), (4, 2), (1030, 2)),  # by transforms
    ((4,), (1030,), (1030,), (4,)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shapes", RECTANGULAR, ids=str)
def test_rectangular_matrices_are_those_of_scipy(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, rng: torch.Generator
) -> None:
    """Products in both directions on every matrix of the batch, their gradients, and products by transforms."""
    for function, transpose in ((toeplitz_matvec, False), (toeplitz_matvec_transpose, True)):
        c, r, x = draw((*shapes[:2], shapes[3] if transpose else shapes[2]), dtype, rng)
        r.data[..., 0] = torch.nan
        out = function(c, r, x)
        many = x.dim() > max(c.dim(), r.dim())
        leading = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], x.shape[: -2 if many else -1])
        expected = torch.empty(out.shape, dtype=dtype)
        for place in itertools.product(*map(range, leading)):
            column, row = (y.detach().expand(*leading, y.shape[-1])[place] for y in (c, r))
            right = x.detach().expand(*leading, *x.shape[-2 if many else -1 :])[place]
            matrix = torch.from_numpy(scipy.linalg.toeplitz(column.numpy(), row.numpy()))
            expected[place] = (matrix.mT if transpose else matrix) @ right
        assert rel_rms(out, expected) < 1e-14
        assert rel_rms(torch.ops.gdn_cuda.toeplitz_matvec_by_transforms(c.detach(), r.detach(), x.detach(), transpose), expected) < 1e-14  # fmt: skip  # noqa: E501
        r.data[..., 0] = 0
        if c.shape[-1] < 1000 and r.shape[-1] < 1000:
            assert torch.autograd.gradcheck(function, (c, r, x))
        else:
            grad = torch.randn(out.shape, generator=rng, dtype=dtype)
            ours = torch.autograd.grad(function(c, r, x), (c, r, x), grad)
            theirs = torch.autograd.grad(getattr(oracle, function.__name__)(c, r, x), (c, r, x), grad)
            assert all(rel_rms(a, b) < 1e-13 for a, b in zip(ours, theirs, strict=True))


def test_rectangular_matrices_of_matmul_toeplitz() -> None:
    c, r, x = torch.tensor([1, 3, 6, 10]), torch.tensor([1, -1, -2]), torch.tensor([[1, 2], [2, 3], [5, 7]])
    expected = scipy.linalg.matmul_toeplitz((c.numpy(), r.numpy()), x.numpy())
    torch.testing.assert_close(toeplitz_matvec(c, r, x), torch.from_numpy(expected).float(), rtol=0, atol=1e-12)
    second = torch.arange(8).view(4, 2)
    transposed = scipy.linalg.toeplitz(c, r).T @ second.numpy()
    assert torch.equal(toeplitz_matvec_transpose(c, r, second), torch.from_numpy(transposed).float())


def test_integers_are_converted_to_the_default_dtype(rng: torch.Generator) -> None:
    """With other tensors they are converted to the dtype of those, as in torch's division."""
    c, r, x = (torch.randint(-9, 9, (4,), generator=rng) for _ in range(3))
    expected = oracle.toeplitz_matvec(c.double(), r.double(), x.double())
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
        out = toeplitz_matvec(c, r.to(torch.int32), x.to(dtype))
        assert out.dtype == torch.get_default_dtype()
        assert torch.equal(out.double(), oracle.toeplitz_matvec(c.double(), r.double(), x.to(dtype).double()))
    for dtype in (torch.float64, torch.bfloat16, torch.complex128):
        assert toeplitz_matvec(c, r, x.to(dtype)).dtype == dtype
    assert torch.equal(toeplitz_matvec(c, r.double(), x), expected)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert toeplitz_matvec(c, r, x).dtype == torch.float64
    finally:
        torch.set_default_dtype(before)
    leaf = x.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: toeplitz_matvec(c, r, x), leaf)
    compiled = torch.compile(toeplitz_matvec, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(c, r, x).double(), expected)


@pytest.mark.parametrize("shapes", [*EMPTY, ((4,), (0,), (0,)), ((0,), (4,), (4, 2)), ((3, 1), (0,), (3, 0))], ids=str)
def test_products_of_empty_matrices(shapes: tuple[tuple[int, ...], ...], rng: torch.Generator) -> None:
    x = draw(shapes, torch.float32, rng)
    out = toeplitz_matvec(*x)
    assert out.shape == oracle.toeplitz_matvec(*x).shape
    gradients = torch.autograd.grad(out.sum(), x)
    assert all(not g.any() and g.shape == y.shape for g, y in zip(gradients, x, strict=True))


@pytest.mark.parametrize("function", PRODUCTS)
def test_the_first_column_decides_the_diagonal(function: Any, rng: torch.Generator) -> None:
    c, r, x = (y.detach() for y in draw(((5,), (5,), (5,)), torch.float32, rng))
    mismatched = torch.cat([torch.tensor([torch.nan]), r[1:]]).requires_grad_()
    out = function(c, mismatched, x)
    assert torch.equal(out, function(c, r, x))
    gradient = torch.autograd.grad(out.sum(), mismatched)[0]
    assert gradient[0] == 0 and gradient[1:].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_mixed_dtypes_are_promoted(dtype: torch.dtype, rng: torch.Generator) -> None:
    c, r, x = (y.detach().to(dtype) for y in draw(((5,), (5,), (5,)), torch.float64, rng))
    out = toeplitz_matvec(c, r, x)
    assert out.dtype == dtype and rel_rms(out, oracle.toeplitz_matvec(c, r, x)) < (4e-3 if dtype.itemsize == 2 else 1e-7)
    assert toeplitz_matvec(c.real, r, x).dtype == dtype
    assert toeplitz_matvec(c, r.real.double(), x).dtype == torch.promote_types(dtype, torch.float64)
    assert toeplitz_matvec(c, r, x.to(torch.complex64)).dtype == torch.complex64


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("function", PRODUCTS)
def test_long_products_use_transforms(function: Any, dtype: torch.dtype, rng: torch.Generator) -> None:
    """Beyond 1024 rows no matrix is formed."""
    c, r, x = (y.detach() for y in draw(((1100,), (1100,), (1100, 2)), dtype, rng))
    r[0] = torch.nan
    expected = literal.toeplitz_matvec(c, r, x, function is toeplitz_matvec_transpose)
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
    """Also with `out`."""
    with FakeTensorMode():
        x = torch.empty(9000, device="cuda")
        assert toeplitz_matvec(x, x, x).shape == toeplitz_matvec(x, x, x, out=x).shape == x.shape
    c, out = torch.arange(3.0), torch.empty(3)
    torch.compile(lambda out: toeplitz_matvec(c, c, c, out=out), fullgraph=True, backend="aot_eager")(out)
    assert torch.equal(out, toeplitz_matvec(c, c, c))


BAD: dict[str, tuple[Any, str]] = {
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
    c, x = torch.zeros(3), [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=f"^{function.__name__}: x: expected a real or complex .* got list$"):
        function(c, c, x)
    for call in (function, lambda *given: function(*given, out=torch.empty(3))):  # without `out`, and with it
        with pytest.raises(ValueError, match=f"^{function.__name__}: x: expected .* got \\(4,\\)$"):
            call(c, c, torch.zeros(4))
    sides = (4, 3) if function is toeplitz_matvec else (3, 4)
    for wrong in (sides[0] - 1, sides[1] - 1 if sides[1] - 1 != sides[0] else 7):
        right = (3, 4)[function is toeplitz_matvec]
        if wrong != right:
            with pytest.raises(ValueError, match=rf"^{function.__name__}: x: expected \(…, {right}\), or with more"):
                function(torch.zeros(3), torch.zeros(4), torch.zeros(wrong))
