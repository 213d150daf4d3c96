"""Toeplitz matrices, their inverses, and matrices given by their displacement as modules.

`nn.Parameter` arguments become parameters of the module, other tensors buffers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..structured.displacement import DisplacementType, check_generators, displacement_matvec
from ..structured.toeplitz import (
    gs_compute_generators,
    toeplitz_inverse_apply,
    toeplitz_matvec,
    toeplitz_matvec_transpose,
    toeplitz_solve,
    toeplitz_solve_ex,
    toeplitz_solve_symmetric,
    toeplitz_solve_symmetric_ex,
)
from .tensors import keep_tensors


def _keep_column_and_row(module: nn.Module, c: Tensor, r: Tensor) -> None:
    keep_tensors(module, "n", c=c, r=r)
    if c.shape[-1] != r.shape[-1]:
        expected = f"(…, {c.shape[-1]}) as c has"
        raise ValueError(f"{type(module).__name__}: r: expected {expected}, got {tuple(r.shape)}")


class ToeplitzMV(nn.Module):
    """Holds first column and first row of T; `forward(x)` is T x, or Tᵀ x with `transpose`.

    Shapes:
        c: (…, n); r: (…, m); x and the result as in `toeplitz_matvec`

    Parameters:
        transpose: whether `forward` multiplies by Tᵀ

    Example:
        >>> gdn_cuda.nn.ToeplitzMV(torch.tensor([4.0, 1, 0]), torch.tensor([4.0, 2, 1]))(torch.ones(3))
        tensor([7., 7., 5.])
    """

    def __init__(self, c: Tensor, r: Tensor, *, transpose: bool = False):
        super().__init__()
        keep_tensors(self, "n", c=c)
        keep_tensors(self, "m", r=r)
        self.transpose = transpose

    def forward(self, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        function = toeplitz_matvec_transpose if self.transpose else toeplitz_matvec
        return function(self.c, self.r, x, stream=stream, out=out)

    def extra_repr(self) -> str:
        return f"c={tuple(self.c.shape)}, r={tuple(self.r.shape)}, transpose={self.transpose}"


class ToeplitzSolve(nn.Module):
    """Holds c and r, or c alone for a symmetric T; `forward(b)` is T⁻¹ b, and raises LinAlgError for a singular T.

    Shapes:
        c, r: (…, n); b and the result: (…, n) or (…, n, k)

    Example:
        >>> gdn_cuda.nn.ToeplitzSolve(torch.tensor([2.0, 1, 0]))(torch.tensor([3.0, 4, 3]))
        tensor([1., 1., 1.])
    """

    def __init__(self, c: Tensor, r: Tensor | None = None):
        super().__init__()
        self.symmetric = r is None
        if r is None:
            keep_tensors(self, "n", c=c)
        else:
            _keep_column_and_row(self, c, r)

    def forward(self, b: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        if self.symmetric:
            return toeplitz_solve_symmetric(self.c, b, stream=stream, out=out)
        return toeplitz_solve(self.c, self.r, b, stream=stream, out=out)

    def solve_ex(self, b: Tensor, *, stream: torch.cuda.Stream | None = None) -> tuple[Tensor, Tensor]:
        """`(T⁻¹ b, info)`: does not raise for singular matrices and does not wait, as `toeplitz_solve_ex`."""
        if self.symmetric:
            return toeplitz_solve_symmetric_ex(self.c, b, stream=stream)
        return toeplitz_solve_ex(self.c, self.r, b, stream=stream)

    def extra_repr(self) -> str:
        return f"c={tuple(self.c.shape)}, symmetric={self.symmetric}"


class ToeplitzInverse(nn.Module):
    """`forward(x)` is T⁻¹ x by Gohberg and Semencul's formula, four products per call.

    Holds the first and the last column of T⁻¹, `gs_u` and `gs_v`, which the constructor computes. If c or r is a parameter,
    it holds c and r instead and solves at every call, so that gradients reach them.

    Shapes:
        c, r: (…, n); x and the result: (…, n) or (…, n, k)

    Example:
        >>> gdn_cuda.nn.ToeplitzInverse(torch.tensor([2.0, 0]), torch.tensor([2.0, 1]))(torch.tensor([3.0, 2]))
        tensor([1., 1.])
    """

    def __init__(self, c: Tensor, r: Tensor):
        super().__init__()
        self.learns = isinstance(c, nn.Parameter) or isinstance(r, nn.Parameter)
        _keep_column_and_row(self, c, r)
        if not self.learns:
            with torch.no_grad():
                u, v = gs_compute_generators(c, r)
            del self.c, self.r
            self.register_buffer("gs_u", u)
            self.register_buffer("gs_v", v)

    def forward(self, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        u, v = gs_compute_generators(self.c, self.r, stream=stream) if self.learns else (self.gs_u, self.gs_v)
        if stream is not None and self.learns:
            torch.cuda.current_stream(x.device).wait_stream(stream)
        return toeplitz_inverse_apply(u, v, x, stream=stream, out=out)

    def extra_repr(self) -> str:
        return f"c={tuple(self.c.shape)}" if self.learns else f"gs_u={tuple(self.gs_u.shape)}"


class DisplacementMV(nn.Module):
    """Holds G and H; `forward(x)` is `displacement_matvec(G, H, x, disp_type)`.

    Shapes:
        G, H: (…, n, r); x and the result: (…, n)

    Parameters:
        disp_type: a `DisplacementType`

    Example:
        >>> gdn_cuda.nn.DisplacementMV(torch.randn(5, 2), torch.randn(5, 2))(torch.randn(5)).shape
        torch.Size([5])
    """

    def __init__(self, G: Tensor, H: Tensor, disp_type: int = DisplacementType.CYCLIC_TRANSPOSED):
        super().__init__()
        keep_tensors(self, "n", "r", G=G, H=H)
        check_generators(type(self).__name__, G, H, disp_type)
        self.disp_type = disp_type

    def forward(self, x: Tensor, *, stream: torch.cuda.Stream | None = None, out: Tensor | None = None) -> Tensor:
        return displacement_matvec(self.G, self.H, x, self.disp_type, stream=stream, out=out)

    def extra_repr(self) -> str:
        return f"G={tuple(self.G.shape)}, disp_type={self.disp_type}"
