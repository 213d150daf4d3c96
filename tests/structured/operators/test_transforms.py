"""Derivatives of the structured operators in forward mode, under torch.func and torch.vmap: correct or refused, never silently
0.

Forward mode is compared with central differences in fp64, torch.func with backward(), torch.vmap with a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import gdn_cuda

N, L = 4, 6


def solve(c: Tensor, r: Tensor, b: Tensor) -> Tensor:
    return gdn_cuda.toeplitz_solve_ex(c, r, b)[0]


def solve_symmetric(c: Tensor, b: Tensor) -> Tensor:
    return gdn_cuda.toeplitz_solve_symmetric_ex(c, b)[0]


def solve_positive(c: Tensor, b: Tensor) -> Tensor:
    return gdn_cuda.toeplitz_solve_symmetric_ex(c, b, assume_positive=True)[0]


def generators(c: Tensor, r: Tensor) -> Tensor:
    return torch.stack(gdn_cuda.gs_compute_generators(c, r))


def inverse(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    return gdn_cuda.toeplitz_inverse_apply(*gdn_cuda.gs_compute_generators(c, r), x)


def powers(v: Tensor, x: Tensor) -> Tensor:
    return gdn_cuda.log_vandermonde(v, 0.1 * x, L)


def powers_transposed(u: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return gdn_cuda.log_vandermonde_transpose(u, v, 0.1 * x, L)


def displaced(G: Tensor, H: Tensor, x: Tensor) -> Tensor:
    return gdn_cuda.displacement_matvec(G, H, x, 2)


REAL, COMPLEX = torch.float64, torch.complex128
# Function, dtype, and shapes of arguments; Toeplitz matrices are drawn nonsingular.
CASES: dict[str, tuple[Callable[..., Tensor], torch.dtype, tuple[tuple[int, ...], ...]]] = {
    "cauchy": (gdn_cuda.cauchy_kernel, REAL, ((N,), (L,), (N,))),
    "cauchy complex": (gdn_cuda.cauchy_kernel, COMPLEX, ((2, 1, N), (3, L), (N,))),
    "cauchy_conj": (gdn_cuda.cauchy_conj, COMPLEX, ((2, N), (L,), (2, N))),
    "vandermonde": (powers, COMPLEX, ((2, N), (N,))),
    "vandermonde transposed": (powers_transposed, COMPLEX, ((L,), (2, N), (N,))),
    "matvec": (gdn_cuda.toeplitz_matvec, REAL, ((N,), (L,), (L,))),
    "matvec complex": (gdn_cuda.toeplitz_matvec, COMPLEX, ((2, 1, N), (3, N), (2, 3, N, 2))),
    "matvec transposed": (gdn_cuda.toeplitz_matvec_transpose, COMPLEX, ((N,), (L,), (N, 2))),
    "solve": (solve, REAL, ((N,), (N,), (N,))),
    "solve complex": (solve, COMPLEX, ((2, 1, N), (3, N), (2, 3, N, 2))),
    "solve that raises": (gdn_cuda.toeplitz_solve, REAL, ((N,), (N,), (N,))),
    "symmetric": (solve_symmetric, COMPLEX, ((2, N), (N,))),
    "symmetric that raises": (gdn_cuda.toeplitz_solve_symmetric, REAL, ((N,), (N, 2))),
    "positive": (solve_positive, REAL, ((2, N), (2, N, 3))),
    "generators": (generators, REAL, ((N,), (N,))),
    "inverse": (inverse, COMPLEX, ((N,), (N,), (N,))),
    "to_cauchy": (gdn_cuda.toeplitz_to_cauchy, REAL, ((N,), (N,))),
    "displacement": (displaced, REAL, ((N, 2), (N, 2), (N,))),
}
EVERY = pytest.mark.parametrize("name", CASES)


def drawn(name: str, rng: torch.Generator, *leading: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    function, dtype, shapes = CASES[name]
    x = [torch.randn(*leading, *shape, generator=rng, dtype=dtype) for shape in shapes]
    if not name.startswith(("cauchy", "vandermonde", "displacement")):
        x[0][..., 0] += 6
    return function, x


@EVERY
def test_tangents_are_differences(name: str, rng: torch.Generator) -> None:
    """With respect to each argument alone and to all of them, by torch.func and by dual numbers."""
    function, x = drawn(name, rng)
    tangents = [torch.randn(y.shape, generator=rng, dtype=y.dtype) for y in x]
    step = 1e-5
    for of in (*range(len(x)), None):
        moved = [t if of in (None, i) else torch.zeros_like(t) for i, t in enumerate(tangents)]
        above, below = (function(*(y + sign * step * t for y, t in zip(x, moved, strict=True))) for sign in (1, -1))
        expected = (above - below) / (2 * step)
        assert expected.abs().max() > 1e-6
        found = torch.func.jvp(function, tuple(x), tuple(moved))[1]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
        with forward_ad.dual_level():
            duals = [
                y if of not in (None, i) else forward_ad.make_dual(y, t) for i, (y, t) in enumerate(zip(x, moved, strict=True))
            ]
            tangent = forward_ad.unpack_dual(function(*duals)).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent, found)


@EVERY
def test_torch_func_gives_the_gradients_of_backward(name: str, rng: torch.Generator) -> None:
    function, x = drawn(name, rng)
    leaves = [y.clone().requires_grad_() for y in x]
    weights = torch.randn(function(*x).shape, generator=rng, dtype=REAL)

    def loss(*x: Tensor) -> Tensor:
        return (weights * function(*x).abs().square()).sum()

    expected = torch.autograd.grad(loss(*leaves), leaves)
    places = tuple(range(len(x)))
    for ours, theirs in zip(torch.func.grad(loss, places)(*x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1] == REAL and name != "to_cauchy"])
def test_jacobians_of_forward_and_reverse_mode_agree(name: str, rng: torch.Generator) -> None:
    function, x = drawn(name, rng)
    places = tuple(range(len(x)))
    for back, forth in zip(torch.func.jacrev(function, places)(*x), torch.func.jacfwd(function, places)(*x), strict=True):
        torch.testing.assert_close(back, forth)
        assert back.any()


@pytest.mark.parametrize("name", ["matvec", "solve", "inverse", "positive"])
def test_hessians_are_differences_of_gradients(name: str, rng: torch.Generator) -> None:
    """jacfwd over jacrev, and jacrev over jacrev."""
    function, x = drawn(name, rng)
    x = [y.real.contiguous() for y in x]

    def loss(first: Tensor) -> Tensor:
        return function(first, *x[1:]).square().sum()

    step, gradient = 1e-5, torch.func.grad(loss)
    units = torch.eye(x[0].numel(), dtype=REAL).reshape(-1, *x[0].shape)
    expected = torch.stack([(gradient(x[0] + step * e) - gradient(x[0] - step * e)) / (2 * step) for e in units], -1)
    expected = expected.reshape(*x[0].shape, *x[0].shape)
    torch.testing.assert_close(torch.func.hessian(loss)(x[0]), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(x[0]), expected, rtol=1e-5, atol=1e-6)


WITHOUT_VMAP = {"solve that raises", "symmetric that raises", "generators", "inverse"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_VMAP])
def test_vmap_is_a_loop(name: str, rng: torch.Generator) -> None:
    """Over all arguments, over each alone, and over a last dimension."""
    function, x = drawn(name, rng, 3)
    for which in (range(len(x)), *([i] for i in range(len(x)))):
        some = [y if i in which else y[0] for i, y in enumerate(x)]
        expected = torch.stack([function(*(y[k] if i in which else y for i, y in enumerate(some))) for k in range(3)])
        dims = tuple(0 if i in which else None for i in range(len(x)))
        torch.testing.assert_close(torch.vmap(function, dims)(*some), expected)
        last = [y.movedim(0, -1) if i in which else y for i, y in enumerate(some)]
        mapped = torch.vmap(function, tuple(None if d is None else -1 for d in dims))(*last)
        torch.testing.assert_close(mapped, expected)


def test_vmap_of_info(rng: torch.Generator) -> None:
    c = torch.tensor([[2.0, 1, 0], [1, 1, 1]])
    b = torch.randn(4, 3, generator=rng)
    both = torch.vmap(gdn_cuda.toeplitz_solve_ex)(c, c, b[:2])[1]
    assert both.tolist() == gdn_cuda.toeplitz_solve_ex(c, c, b[:2])[1].tolist() == [0, 2]
    info = torch.vmap(lambda b: gdn_cuda.toeplitz_solve_ex(c[1], c[1], b))(b)[1]
    assert info.tolist() == [2] * 4
    positive = torch.vmap(lambda c, b: gdn_cuda.toeplitz_solve_symmetric_ex(c, b, assume_positive=True))(c, b[:2])[1]
    assert positive.tolist() == [0, -2]


@pytest.mark.parametrize("name", sorted(WITHOUT_VMAP))
def test_functions_that_inspect_values_are_refused_under_vmap(name: str, rng: torch.Generator) -> None:
    function, x = drawn(name, rng, 3)
    with pytest.raises(
        ValueError,
        match=r"^(toeplitz_solve(_symmetric)?|gs_compute_generators): info: expected a call outside torch.vmap, .*_ex does not",
    ):
        torch.vmap(function)(*x)


def test_second_derivatives_of_sums_over_poles_are_refused(rng: torch.Generator) -> None:
    """In every order of modes; for sums of powers only if backward refuses them too."""
    for name in ("cauchy", "cauchy_conj"):
        function, x = drawn(name, rng)

        def loss(v: Tensor, points: Tensor, poles: Tensor, function: Any = function) -> Tensor:
            return function(v, points, poles).abs().square().sum()

        for second in (torch.func.grad, torch.func.jacfwd):
            with pytest.raises(RuntimeError, match=rf"^{function.__name__}: gradients of gradients are not computed$"):
                second(lambda s, x=x, loss=loss: torch.func.grad(loss, 1)(x[0], s * x[1], x[2]).abs().sum())(
                    torch.tensor(1.0, dtype=REAL)
                )
        with pytest.raises(RuntimeError, match=rf"^{function.__name__}: gradients of gradients are not computed$"):
            torch.func.jvp(
                lambda z, x=x, loss=loss: torch.func.jvp(lambda z: loss(x[0], z, x[2]), (z,), (z,))[1], (x[1],), (x[1],)
            )


@pytest.mark.parametrize(
    "name", ["cauchy", "vandermonde", "vandermonde transposed", "matvec", "solve that raises", "displacement"]
)
def test_out_is_refused_where_derivatives_would_be_lost(name: str, rng: torch.Generator) -> None:
    function = CASES[name][0]
    calls: dict[str, Callable[..., Tensor]] = {
        "vandermonde": lambda v, x, out: gdn_cuda.log_vandermonde(v, x, L, out=out),
        "vandermonde transposed": lambda u, v, x, out: gdn_cuda.log_vandermonde_transpose(u, v, x, L, out=out),
        "displacement": lambda G, H, x, out: gdn_cuda.displacement_matvec(G, H, x, 2, out=out),
    }
    call = calls.get(name, lambda *x, out: function(*x, out=out))  # type: ignore[misc, call-arg]
    _, x = drawn(name, rng)
    if name == "vandermonde transposed":
        x[0] = x[0].real.contiguous()
    out = torch.full_like(function(*x), 7.0)
    with pytest.raises(ValueError, match=r": out: expected None under torch.func, torch.vmap and forward mode, got a tensor$"):
        torch.func.jvp(lambda first: call(first, *x[1:], out=out), (x[0],), (x[0],))
    assert bool((out == 7).all())


def test_hessian_vector_products_agree_in_forward_and_reverse_mode(rng: torch.Generator) -> None:
    """A Hessian-vector product through a module, forward over backward, is that of backward over backward."""
    c, r, x = (torch.randn(5, generator=rng, dtype=REAL) for _ in range(3))
    module = gdn_cuda.nn.ToeplitzMV(c, r)

    def loss(x: Tensor) -> Tensor:
        return module(x).pow(3).sum()

    direction = torch.randn(5, generator=rng, dtype=REAL)
    forward = torch.func.jvp(torch.func.grad(loss), (x,), (direction,))[1]
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    (backward,) = torch.autograd.grad(gradient, leaf, direction)
    torch.testing.assert_close(forward, backward)
