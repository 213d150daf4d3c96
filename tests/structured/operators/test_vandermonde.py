"""log_vandermonde and its transpose as operators: gradients, broadcasting, dtypes, tracing, errors. CPU tensors."""

from __future__ import annotations

import literal
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import log_vandermonde, log_vandermonde_transpose

SHAPES = [((5,), (5,)), ((3, 1, 5), (2, 5)), ((4, 0), (0,))]


def draw(shape: tuple[int, ...], rng: torch.Generator, dtype: torch.dtype = torch.complex128) -> Tensor:
    return torch.randn(shape, generator=rng, dtype=dtype)


def exponents(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return (0.2 * draw(shape, rng)).requires_grad_()


@pytest.mark.parametrize("L", [0, 1, 7])
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients(shapes: tuple[tuple[int, ...], ...], L: int, rng: torch.Generator) -> None:
    v, x = draw(shapes[0], rng).requires_grad_(), exponents(shapes[1], rng)
    assert rel_rms(log_vandermonde(v, x, L), literal.log_vandermonde(v, x, L)) < 1e-14
    assert torch.autograd.gradcheck(lambda v, x: log_vandermonde(v, x, L), (v, x))


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
def test_transpose(shapes: tuple[tuple[int, ...], ...], complex_: bool, rng: torch.Generator) -> None:
    v, x = draw(shapes[0], rng).requires_grad_(), exponents(shapes[1], rng)
    u = draw((*shapes[1][:-1], 7), rng, torch.complex128 if complex_ else torch.float64).requires_grad_()
    expected = literal.log_vandermonde_transpose(u, v, x, 7)
    assert rel_rms(log_vandermonde_transpose(u, v, x, 7), expected) < 1e-14
    assert torch.autograd.gradcheck(lambda u, v, x: log_vandermonde_transpose(u, v, x, 7), (u, v, x))


def test_dtypes(rng: torch.Generator) -> None:
    v, x = draw((5,), rng), exponents((5,), rng).detach()
    assert log_vandermonde(v.to(torch.complex64), x.to(torch.complex64), 3).dtype == torch.float32
    assert log_vandermonde(v.real.float(), x, 3).dtype == torch.float64
    assert log_vandermonde_transpose(torch.ones(3), v.to(torch.complex64), x.to(torch.complex64), 3).dtype == torch.complex64
    assert log_vandermonde_transpose(torch.ones(3, dtype=torch.bfloat16), v, x, 3).dtype == torch.complex128


def test_tracing(rng: torch.Generator) -> None:
    v, x, u = draw((3, 1, 5), rng).requires_grad_(), exponents((2, 5), rng), draw((2, 7), rng, torch.float64).requires_grad_()
    torch.library.opcheck(torch.ops.gdn_cuda.log_vandermonde.default, (v, x, 7))
    torch.library.opcheck(torch.ops.gdn_cuda.log_vandermonde_moments.default, (u, x, 1))
    both = lambda u, v, x: (log_vandermonde(v, x, 7), log_vandermonde_transpose(u, v, x, 7))  # noqa: E731
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(sum(y.abs().sum() for y in f(u, v, x)), (u, v, x)) for f in (both, compiled))  # type: ignore[arg-type]
    for a, b in zip(eager, traced, strict=True):
        torch.testing.assert_close(a, b)


def test_errors_say_what_is_wrong(rng: torch.Generator) -> None:
    v, x = draw((5,), rng), draw((4,), rng)
    with pytest.raises(ValueError, match=r"^log_vandermonde: x: expected \(…, 5\) as v has, got \(4,\)$"):
        log_vandermonde(v, x, 3)
    with pytest.raises(ValueError, match=r"^log_vandermonde: L: expected 0 to 1099511627776, got -1$"):
        log_vandermonde(v, v, -1)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: u: expected \(…, L=3\), got \(2,\)$"):
        log_vandermonde_transpose(torch.ones(2), v, v, 3)
    with pytest.raises(ValueError, match=r"^log_vandermonde_transpose: v: expected \(…, 4\) as x has, got \(5,\)$"):
        log_vandermonde_transpose(torch.ones(3), v, x, 3)
    message = r"^log_vandermonde_transpose: x: expected leading dimensions that broadcast with those of u and v, got \(2, 5\)$"
    with pytest.raises(ValueError, match=message):
        log_vandermonde_transpose(torch.ones(3), v.expand(3, 5), v.expand(2, 5), 3)
