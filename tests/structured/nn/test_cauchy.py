"""CauchyKernel on CPU tensors: the operator applied to the tensors that the module holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gdn_cuda
from gdn_cuda.nn import CauchyKernel


def draw(*shape: int, rng: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.complex128)


@pytest.mark.parametrize("conj", [False, True])
def test_holds_parameters_and_buffers(conj: bool, rng: torch.Generator) -> None:
    function = gdn_cuda.cauchy_conj if conj else gdn_cuda.cauchy_kernel
    omega, lambd, v = draw(7, rng=rng), nn.Parameter(draw(5, rng=rng)), draw(2, 5, rng=rng)
    kernel = CauchyKernel(omega, lambd, conj=conj)
    assert dict(kernel.named_parameters()).keys() == {"lambd"} and dict(kernel.named_buffers()).keys() == {"omega"}
    out = kernel(v)
    assert torch.equal(out, function(v, omega, lambd))
    (expected,) = torch.autograd.grad(function(v, omega, lambd).abs().sum(), lambd)
    assert torch.equal(torch.autograd.grad(out.abs().sum(), lambd)[0], expected)
    with torch.no_grad():
        place = torch.empty_like(out)
        assert kernel(v, out=place) is place and torch.equal(place, out)


def test_state_dict_round_trip(rng: torch.Generator) -> None:
    one, other = (CauchyKernel(draw(7, rng=rng), nn.Parameter(draw(5, rng=rng))) for _ in range(2))
    other.load_state_dict(one.state_dict())
    v = draw(5, rng=rng)
    assert torch.equal(one(v), other(v))
    assert one.to(torch.complex64)(v.to(torch.complex64)).dtype == torch.complex64


def test_errors() -> None:
    x = torch.ones(3)
    with pytest.raises(
        ValueError, match=r"^CauchyKernel: lambd: expected a real or complex .* \(…, n\), got torch.int64 \(3,\)$"
    ):
        CauchyKernel(x, x.long())
    with pytest.raises(ValueError, match=r"^CauchyKernel: omega: .*, got torch.float32 \(\)$"):
        CauchyKernel(x[0], x)
