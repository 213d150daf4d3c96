"""A Cauchy matrix as a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..structured import cauchy_conj, cauchy_kernel
from .tensors import keep_tensors


class CauchyKernel(nn.Module):
    """Holds points and poles; `forward(v)` is `cauchy_kernel(v, omega, lambd)`, or `cauchy_conj` with `conj`.

    Each is a parameter if it is given as an `nn.Parameter`, else a buffer.

    Shapes:
        omega: (…, L); lambd, v: (…, N); the result: (…, L)

    Parameters:
        conj: whether each pole stands for itself and its conjugate

    Example:
        >>> layer = gdn_cuda.nn.CauchyKernel(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 3.0, 4.0]))
        >>> layer(torch.ones(3))
        tensor([ 0.1667, -1.0000])
    """

    def __init__(self, omega: Tensor, lambd: Tensor, *, conj: bool = False):
        super().__init__()
        keep_tensors(self, "n", omega=omega, lambd=lambd)
        self.conj = conj

    def forward(self, v: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        function = cauchy_conj if self.conj else cauchy_kernel
        return function(v, self.omega, self.lambd, stream=stream, out=out)

    def extra_repr(self) -> str:
        return f"points={tuple(self.omega.shape)}, poles={tuple(self.lambd.shape)}, conj={self.conj}"
