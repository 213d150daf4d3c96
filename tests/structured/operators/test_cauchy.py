"""cauchy_kernel and cauchy_conj as operators: gradients, broadcasting, dtypes, tracing, errors. CPU tensors."""

from __future__ import annotations

from typing import Any

import literal
import pytest
import torch
from helpers import rel_rms
from torch import Tensor

from gdn_cuda import cauchy_conj, cauchy_kernel
from gdn_cuda.reference import structured_cauchy as oracle

SHAPES = [
    ((5,), (7,), (5,)),
    ((3, 1, 5), (2, 7), (5,)),
    ((2, 1), (2, 1), (1, 1)),
    ((4, 0), (3,), (4, 0)),
    ((4, 2), (4, 0), (2,)),
]
FUNCTIONS = {"kernel": (cauchy_kernel, torch.float64), "complex": (cauchy_kernel, torch.complex128),
         "conj": (cauchy_conj, torch.complex128)}  # fmt: skip


def draw(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, rng: torch.Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=rng, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_values_and_gradients(name: str, shapes: tuple[tuple[int, ...], ...], rng: torch.Generator) -> None:
    function, dtype = FUNCTIONS[name]
    x = draw(shapes, dtype, rng)
    out, expected = function(*x), getattr(oracle, function.__name__)(*x)
    assert rel_rms(out, getattr(literal, function.__name__)(*x)) < 1e-13  # independent: `expected` is the CPU implementation
    grad = torch.randn(out.shape, generator=rng, dtype=dtype)
    for ours, theirs in zip(torch.autograd.grad(out, x, grad), torch.autograd.grad(expected, x, grad), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(function, x)


def test_only_requested_gradients_are_computed(rng: torch.Generator) -> None:
    v, omega, lambd = draw(((5,), (7,), (5,)), torch.float64, rng)
    fixed = cauchy_kernel(v.detach(), omega, lambd.detach())
    fixed.sum().backward()
    assert omega.grad is not None and v.grad is None and lambd.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_mixed_dtypes_are_promoted(dtype: torch.dtype, rng: torch.Generator) -> None:
    v, omega, lambd = (x.detach() for x in draw(((5,), (7,), (5,)), torch.float64, rng))
    out = cauchy_kernel(v.to(dtype), omega.to(dtype), lambd.to(dtype))
    assert out.dtype == dtype
    assert rel_rms(out, oracle.cauchy_kernel(*(x.to(dtype) for x in (v, omega, lambd)))) < 4e-3
    assert cauchy_kernel(v.to(dtype), omega.float(), lambd.float()).dtype == torch.promote_types(dtype, torch.float32)
    assert cauchy_conj(v.to(dtype), omega.to(dtype), lambd.to(dtype)).dtype == torch.complex64


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tracing(name: str, rng: torch.Generator) -> None:
    function, dtype = FUNCTIONS[name]
    x = draw(SHAPES[1], dtype, rng)
    torch.library.opcheck(torch.ops.gdn_cuda.cauchy.default, (*x, name == "conj"))
    grad = torch.randn(3, 2, 7, generator=rng, dtype=dtype)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    eager, traced = (torch.autograd.grad(f(*x), x, grad) for f in (function, compiled))
    assert all(torch.equal(a, b) for a, b in zip(eager, traced, strict=True))


BAD: dict[str, tuple[Any, str]] = {
    "length": (((5,), (7,), (4,)), r"{f}: {poles}: expected \(…, 5\) as v has, got \(4,\)"),
    "rank": (((5,), (), (5,)), r"{f}: {points}: expected rank 1 or more, got \(\)"),
    "leading": (((2, 5), (3, 7), (5,)),
                r"{f}: {points}: expected leading dimensions that broadcast with those of v, got \(3, 7\)"),
}  # fmt: skip


@pytest.mark.parametrize("function", [cauchy_kernel, cauchy_conj])
@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_is_wrong(function: Any, name: str, rng: torch.Generator) -> None:
    shapes, message = BAD[name]
    points, poles = ("z", "w") if function is cauchy_conj else ("omega", "lambd")
    with pytest.raises(ValueError, match="^" + message.replace("{f}", function.__name__).replace("{points}", points).replace("{poles}", poles) + "$"):  # fmt: skip  # noqa: E501
        function(*draw(shapes, torch.float32, rng))
    x = draw(((5,), (7,), (5,)), torch.float32, rng)
    with pytest.raises(ValueError, match=f"^{function.__name__}: {points}: expected a real or complex floating-point tensor, got torch.int64$"):  # fmt: skip  # noqa: E501
        function(x[0], x[1].long(), x[2])
