"""The Toeplitz operators on CPU tensors: what the public functions mean, in the dtype they promise.

Shapes and dtypes were checked by the C++ operators. Everything is computed in fp64 and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import structured_toeplitz as oracle
from .structured_common import roots_of_unity, zeros_of

_LARGEST_DENSE = 1024  # beyond, a product by transforms: as many digits, up to a few of the last, without n² numbers


def widened(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def fast_length(least: int) -> int:
    """The next 2^a or 3 · 2^a."""
    power = 1 << max(least - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and power * 3 // 4 >= least else power


def matvec_by_transforms(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """T x for x (…,n,k): T is a corner of a circulant matrix. In the dtype of c, r and x, which is one; any device."""
    n = c.shape[-1]
    shape = (*torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], x.shape[:-2]), n, x.shape[-1])
    if 0 in shape:
        return zeros_of(shape, c, r, x)
    length = fast_length(2 * n - 1)
    c, r = torch.broadcast_tensors(c, r)
    diagonals = torch.cat([c, c.new_zeros(*c.shape[:-1], length - 2 * n + 1), r[..., 1:].flip(-1)], -1)
    forward, inverse = (torch.fft.fft, torch.fft.ifft) if c.is_complex() else (torch.fft.rfft, torch.fft.irfft)
    product = forward(diagonals)[..., None] * forward(x, length, dim=-2)
    return inverse(product, length, dim=-2)[..., :n, :]


def transposed(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """First column and row of Tᵀ; c[0] wins there too."""
    c, r = torch.broadcast_tensors(c, r)
    return torch.cat([c[..., :1], r[..., 1:]], -1), c


def toeplitz_matvec(c: Tensor, r: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """In x's dtype."""
    if c.shape[-1] <= _LARGEST_DENSE:
        function = oracle.toeplitz_matvec_transpose if transpose else oracle.toeplitz_matvec
        return function(c, r, x).to(x.dtype)
    many = x.dim() > max(c.dim(), r.dim())
    column, row = transposed(c, r) if transpose else (c, r)
    out = matvec_by_transforms(widened(column), widened(row), widened(x if many else x[..., None])).to(x.dtype)
    return out if many else out.squeeze(-1)


def toeplitz_solve(c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x in b's dtype, and info."""
    x, info = oracle.toeplitz_solve_ex(c, r, b)
    return x.to(b.dtype), info


def toeplitz_schur(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x in b's dtype and, for every leading index of it, info: as ever, or −k where the leading minor of order k is not
    positive, and NaN for x."""
    x, info = oracle.toeplitz_solve_ex(c, c, b)
    failed = torch.linalg.cholesky_ex(oracle.toeplitz(c, c)).info
    many = b.dim() > c.dim()
    batch = torch.broadcast_shapes(c.shape[:-1], b.shape[: -2 if many else -1])
    told = torch.where(failed > 0, -failed, info).expand(batch)
    fails = (told < 0)[..., None]
    return torch.where(fails[..., None] if many else fails, torch.nan, x).to(b.dtype), told


def toeplitz_gko(left: Tensor, right: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The elimination of the kernel structured/toeplitz_gko, a row of torch operations a step.

    C has (l_i − m_j) C_ij = Σ_s left_si right_sj with l_i = e^{−2πi i/n}, m_j = e^{−πi (2j+1)/n}; left and right (S,2,n),
    numbers (S,R,n). C⁻¹ numbers and, for every system, 0 or the 1-based step that found a column of zeros.
    """
    systems, _, n = left.shape
    left, right, numbers = left.clone(), right.clone(), numbers.clone()
    nodes = torch.arange(0, 2 * n, 2, device=left.device).expand(systems, n).clone()  # of rows; odd ones are the solution's
    info = torch.zeros(systems, dtype=torch.int32, device=left.device)
    every, places = torch.arange(systems, device=left.device), torch.arange(n, device=left.device)

    def over_difference(sums: Tensor, row: Tensor, column: Tensor) -> Tensor:
        apart = (column - row).remainder(2 * n)  # in steps of half a node
        cotangent = torch.where(apart == 0, 0.0, 1 / torch.tan(apart.clamp_min(1).to(torch.float64) * (torch.pi / (2 * n))))
        return sums * roots_of_unity(-row, 2 * n) * torch.complex(torch.full_like(cotangent, 0.5), -0.5 * cotangent)

    for k in range(n):
        column = over_difference((left * right[:, :, k, None]).sum(1), nodes, torch.tensor(2 * k + 1))
        pivot = torch.where(nodes % 2 == 0, column.abs(), -1.0).argmax(-1)
        size = column[every, pivot]
        info = torch.where((info == 0) & ~(size.abs() > 0), k + 1, info).to(torch.int32)
        of_left, of_numbers = left[every, :, pivot], numbers[every, :, pivot]
        row = over_difference((of_left[:, :, None] * right).sum(1), nodes[every, pivot][:, None], 2 * places + 1)
        right = torch.where(places > k, right - right[:, :, k, None] * (row / size[:, None])[:, None], right)
        factor = column / size[:, None]
        factor[every, pivot] = 1 / size  # of the row of the identity that takes the pivot's place
        left[every, :, pivot], numbers[every, :, pivot] = 0, 0
        left = left - of_left[:, :, None] * factor[:, None]
        numbers = numbers - of_numbers[:, :, None] * factor[:, None]
        nodes[every, pivot] = 2 * k + 1
    order = ((nodes - 1) // 2).argsort(-1)
    return -numbers.gather(2, order[:, None].expand_as(numbers)), info
