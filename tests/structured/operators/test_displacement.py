"""displacement_matvec: values, gradients, dtypes, tracing, memory, errors. CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gdn_cuda.reference.structured_toeplitz import toeplitz
from helpers import rel_rms

from gdn_cuda.reference import structured_displacement as oracle
from gdn_cuda.structured.displacement import DisplacementType, displacement_matvec

SHAPES = [
    ((5, 2), (5, 2), (5,)),
    ((2, 1, 4, 3), (3, 4, 3), (4,)),
    ((1, 1), (1, 1), (1,)),
    ((2, 1), (2, 1), (6, 2)),
    ((0, 2), (0, 2), (0,)),
    ((4, 0), (4, 0), (4,)),
    ((3, 0, 1), (0, 1), (3, 0)),
    ((0, 5, 2), (5, 2), (5,)),
]


@pytest.mark.parametrize("disp_type", DisplacementType)
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients(disp_type: int, shapes: tuple[tuple[int, ...], ...], rng: torch.Generator) -> None:
    for dtype in (torch.float64, torch.complex128):
        x = [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]
        out, expected = displacement_matvec(*x, disp_type), oracle.displacement_matvec(*x, disp_type)
        assert out.shape == expected.shape and out.dtype == dtype
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-13)
        grad = torch.randn(out.shape, generator=rng, dtype=dtype)
        for ours, theirs in zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    if shapes == SHAPES[0]:
        assert torch.autograd.gradcheck(lambda *x: displacement_matvec(*x, disp_type), x)


def test_a_rank_of_zero_gives_zeros_for_any_x() -> None:
    none, x = torch.zeros(3, 0), torch.tensor([torch.inf, 1, 2])
    assert displacement_matvec(none, none, x).tolist() == [0, 0, 0]


@pytest.mark.parametrize("n", [31, 256])
def test_generators_of_a_toeplitz_matrix_reproduce_its_products(n: int, rng: torch.Generator) -> None:
    """From their generators under (Z_1, Z_{−1}), which have rank 2."""
    c, r, x = torch.randn(3, n, generator=rng, dtype=torch.float64)
    matrix = toeplitz(c, r)
    left, right = torch.zeros(2, n, 2, dtype=torch.float64)
    left[0, 0], right[-1, 1] = 1, 1
    left[:, 1] = torch.cat([c[:1], r[1:].flip(0) + c[1:]])
    right[:, 0] = torch.cat([c[1:].flip(0) - r[1:], c[:1]])
    assert rel_rms(displacement_matvec(left, right, x, DisplacementType.CYCLIC_ANTICYCLIC), matrix @ x) < 1e-13


@pytest.mark.parametrize("disp_type", DisplacementType)
def test_long_products_form_no_matrix(disp_type: int, rng: torch.Generator) -> None:
    """A matrix of 60 000 rows would take 29 GB. Two halves of x show linearity."""
    G, H = torch.randn(2, 60_000, 2, generator=rng)
    x, y = torch.randn(2, 60_000, generator=rng)
    one, two, both = (displacement_matvec(G, H, z, disp_type) for z in (x, y, x + y))
    assert rel_rms(one + two, both) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_mixed_dtypes_are_promoted(dtype: torch.dtype, rng: torch.Generator) -> None:
    G, H = torch.randn(2, 6, 2, generator=rng).to(dtype)
    x = torch.randn(6, generator=rng).to(dtype)
    out = displacement_matvec(G, H, x)
    assert out.dtype == dtype and rel_rms(out, oracle.displacement_matvec(G, H, x)) < (4e-3 if dtype.itemsize == 2 else 1e-7)
    assert displacement_matvec(G, H, x.to(torch.complex128)).dtype == torch.complex128


def test_tracing_and_out(rng: torch.Generator) -> None:
    x = [torch.randn(shape, generator=rng).requires_grad_() for shape in SHAPES[1]]
    for disp_type in DisplacementType:

        def apply(*x: torch.Tensor, disp_type: int = disp_type) -> torch.Tensor:
            return displacement_matvec(*x, disp_type)

        compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
        eager, traced = (torch.autograd.grad(f(*x).square().sum(), x) for f in (apply, compiled))
        assert all(torch.allclose(a, b) for a, b in zip(eager, traced, strict=True))
    with torch.no_grad():
        expected = displacement_matvec(*x)
        out = torch.full_like(expected, torch.nan)
        assert displacement_matvec(*x, out=out) is out and torch.equal(out, expected)
        with pytest.raises(
            ValueError, match=r"^displacement_matvec: out: expected the shape of the result, .* got \(2, 3, 3\)"
        ):
            displacement_matvec(*x, out=out[..., :-1].contiguous())


BAD: dict[str, tuple[Any, int, str]] = {
    "generators": (((4, 2), (4, 3), (4,)), 0, r"H: expected \(…, n, r\) as G has \(4, 2\), got \(4, 3\)"),
    "rank": (((4,), (4,), (4,)), 0, r"G: expected \(…, n, r\), got \(4,\)"),
    "leading": (((2, 4, 2), (3, 4, 2), (4,)), 0,
                r"H: expected leading dimensions that broadcast with those of G, got \(3, 4, 2\)"),
    "leading of x": (((2, 4, 2), (4, 2), (3, 4)), 0,
                     r"x: expected leading dimensions that broadcast with those of G and H, got \(3, 4\)"),
    "vector": (((4, 2), (4, 2), (1,)), 0, r"x: expected \(…, 4\) as G has, got \(1,\)"),
    "type": (((4, 2), (4, 2), (4,)), 3, r"disp_type: expected one of 0 \(CYCLIC_TRANSPOSED\), .*, got 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(name: str, rng: torch.Generator) -> None:
    shapes, disp_type, message = BAD[name]
    with pytest.raises(ValueError, match=f"^displacement_matvec: {message}$"):
        displacement_matvec(*(torch.randn(shape, generator=rng) for shape in shapes), disp_type)
