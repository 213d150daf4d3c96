"""A Cauchy matrix as a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops.structured import cauchy_conj, cauchy_kernel


def keep(module: nn.Module, name: str, x: Tensor) -> None:
    """A parameter if it is given as one, else a buffer."""
    if isinstance(x, nn.Parameter):
        module.register_parameter(name, x)
    else:
        module.register_buffer(name, x)


class CauchyKernel(nn.Module):
    """Holds points ω (…,L) and poles λ (…,N); `forward(v)` is `cauchy_kernel(v, ω, λ)`, or with `conj` `cauchy_conj`.

    Each is a parameter if it is given as an `nn.Parameter`, else a buffer.
    """

    def __init__(self, omega: Tensor, lambd: Tensor, *, conj: bool = False):
        super().__init__()
        for argument, x in (("omega", omega), ("lambd", lambd)):
            if not isinstance(x, Tensor) or x.dim() < 1 or not (x.is_floating_point() or x.is_complex()):
                got = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
                raise ValueError(
                    f"CauchyKernel: {argument}: expected a real or complex floating-point tensor (…, n), got {got}"
                )
            keep(self, argument, x)
        self.conj = conj

    def forward(self, v: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        function = cauchy_conj if self.conj else cauchy_kernel
        return function(v, self.omega, self.lambd, stream=stream, out=out)

    def extra_repr(self) -> str:
        return f"points={tuple(self.omega.shape)}, poles={tuple(self.lambd.shape)}, conj={self.conj}"
