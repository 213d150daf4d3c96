"""The Toeplitz operators on CPU tensors, in the dtypes of the public functions.

Arguments of operators are attributes of x; C++ has checked shapes and dtypes. Everything is computed in fp64 and rounded
once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from . import reference_toeplitz as oracle
from .reference_common import broadcast_shapes, exponents_of, roots_of_unity, zeros_of

_LARGEST_DENSE = 1024  # longer products use transforms: nearly as exact, without a matrix of n² values


def widened(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def fast_length(least: int) -> int:
    """The next 2^a or 3 · 2^a."""
    power = 1 << max(least - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and power * 3 // 4 >= least else power


def matvec_by_transforms(c: Tensor, r: Tensor, x: Tensor) -> Tensor:
    """T x for c (…,n), r (…,m) and x (…,m,k): T is a corner of a circulant matrix. In the promoted dtype; on any device."""
    rows, columns = c.shape[-1], r.shape[-1]
    leading = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    shape = (*broadcast_shapes(leading, x.shape[:-2]), rows, x.shape[-1])
    if 0 in shape or columns == 0:
        return zeros_of(shape, c, r, x)
    length = fast_length(rows + columns - 1)
    c, r = c.expand(*leading, rows), r.expand(*leading, columns)
    gap = c.new_zeros(*leading, length - rows - columns + 1)
    diagonals = torch.cat([c, gap, r[..., 1:].flip(-1)], -1)
    forward, inverse = (torch.fft.fft, torch.fft.ifft) if c.is_complex() else (torch.fft.rfft, torch.fft.irfft)
    product = forward(diagonals)[..., None] * forward(x, length, dim=-2)
    return inverse(product, length, dim=-2)[..., :rows, :]


def transposed(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """First column and row of Tᵀ, with c[0] on the diagonal."""
    leading = broadcast_shapes(c.shape[:-1], r.shape[:-1])
    c, r = c.expand(*leading, c.shape[-1]), r.expand(*leading, r.shape[-1])
    return torch.cat([c[..., :1], r[..., 1:]], -1), c


def toeplitz_matvec(x: Any) -> Tensor:
    """In x's dtype."""
    c, r, right, transpose = x.c, x.r, x.x, x.transpose
    if max(c.shape[-1], r.shape[-1]) <= _LARGEST_DENSE:
        function = oracle.toeplitz_matvec_transpose if transpose else oracle.toeplitz_matvec
        return function(c, r, right).to(right.dtype)
    many = right.dim() > max(c.dim(), r.dim())
    column, row = transposed(c, r) if transpose and c.shape[-1] and r.shape[-1] else (r, c) if transpose else (c, r)
    out = matvec_by_transforms(widened(column), widened(row), widened(right if many else right[..., None])).to(right.dtype)
    return out if many else out.squeeze(-1)


def toeplitz_solve(x: Any) -> tuple[Tensor, Tensor]:
    return solved(x.c, x.r, x.b)


def solved(c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """T⁻¹ b in b's dtype, and info."""
    solution, info = oracle.toeplitz_solve_ex(c, r, b)
    return solution.to(b.dtype), info


def toeplitz_schur(x: Any) -> tuple[Tensor, Tensor]:
    """T⁻¹ b in b's dtype and, for every leading index of it, info; −k if the leading minor of order k is not positive, and
    the solution is NaN."""
    solution, info = oracle.toeplitz_solve_ex(x.c, x.c, x.b)
    failed = torch.linalg.cholesky_ex(oracle.toeplitz(x.c, x.c)).info
    many = x.b.dim() > x.c.dim()
    batch = broadcast_shapes(x.c.shape[:-1], x.b.shape[: -2 if many else -1])
    told = torch.where(failed > 0, -failed, info).expand(batch)
    fails = (told < 0)[..., None]
    return torch.where(fails[..., None] if many else fails, torch.nan, solution).to(x.b.dtype), told


def info_per_matrix(info: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Reduces info from leading indices of the result to one per matrix; right-hand sides of a matrix have the same info."""
    info = info.reshape((1,) * max(0, len(shape) - info.dim()) + info.shape)
    while info.dim() > len(shape):
        info = info[0] if info.shape[0] else info.new_zeros(info.shape[1:])
    for d, size in enumerate(shape):
        if info.shape[d] != size:
            info = info.narrow(d, 0, 1) if info.shape[d] else info.new_zeros((*info.shape[:d], 1, *info.shape[d + 1 :]))
    return info.contiguous()


def _half_turns(n: int, device: torch.device) -> Tensor:
    """e^{πi k/n}"""
    angles = torch.arange(n, dtype=torch.float64, device=device) * (math.pi / n)
    return torch.complex(angles.cos(), angles.sin())


def toeplitz_generators(x: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The equivalent of the kernel structured/toeplitz_generators: Z_1 T − T Z_{−1} has rank 2, its first row and last column;
    with F the unitary DFT and D = diag(e^{−πi k/n}), F Z_1 F⁻¹ and F D Z_{−1} (F D)⁻¹ are diagonal, so C = F T (F D)⁻¹ is the
    matrix to eliminate."""
    c, r, b = x.c, x.r, x.b
    n, many = c.shape[-1], b.dim() > max(c.dim(), r.dim())
    right = b if many else b[..., None]
    systems = math.prod(broadcast_shapes(c.shape[:-1], r.shape[:-1], right.shape[:-2]))
    if n == 0 or systems == 0:
        empty = (b.new_zeros((systems, rows, n), dtype=torch.complex128) for rows in (2, 2, right.shape[-1] + 1))
        return *empty, b.new_zeros((systems, 2), dtype=torch.float64)
    column, row, rhs, scale = _scaled(c, r, right)
    norm = torch.maximum(column.abs().sum(-1), row.abs().sum(-1))  # the sum of the last column is that of the first row
    first, last = torch.zeros_like(column), torch.zeros_like(column)
    first[:, :1] = last[:, -1:] = 1
    back = row[:, 1:].flip(-1)
    row_generators = torch.stack([first, torch.cat([column[:, :1], back + column[:, 1:]], -1)], 1)
    column_generators = torch.stack([torch.cat([column[:, 1:].flip(-1) - row[:, 1:], column[:, :1]], -1), last], 1)
    sides = row_generators, column_generators * _half_turns(n, c.device), rhs.mT
    transforms = torch.fft.fft, torch.fft.ifft, torch.fft.fft
    found = (f(y.to(torch.complex128), norm="ortho") for f, y in zip(transforms, sides, strict=True))
    return *found, torch.stack([scale[:, 0], norm], -1)


def _scaled(c: Tensor, r: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Column and row (S,n) in fp64, times powers of two, right-hand sides (S,n,k+1) with the probe as the last, and those
    powers (S,1): nothing is rounded, and squares of pivots stay in range."""
    n = c.shape[-1]
    batch = broadcast_shapes(c.shape[:-1], r.shape[:-1], right.shape[:-2])
    column, row = (widened(y).expand(*batch, n).reshape(-1, n) for y in (c, r))
    row = torch.cat([column[:, :1], row[:, 1:]], -1)  # r[0] is not read
    largest = torch.maximum(column.abs().amax(-1), row.abs().amax(-1))
    scale = torch.exp2(-exponents_of(largest))[:, None]
    rhs = widened(right).expand(*batch, *right.shape[-2:]).reshape(len(column), n, right.shape[-1])
    return column * scale, row * scale, torch.cat([rhs, _probe(column)], -1), scale


def _probe(column: Tensor) -> Tensor:
    """An additional right-hand side (S,n,1): fixed signs, without a pattern that a matrix might have."""
    places = torch.arange(column.shape[-1], device=column.device)
    mixed = (places * 2654435761 + 1013904223) % 4294967296
    signs = 1 - 2 * (mixed * mixed // 65536 % 2)
    return signs.to(column.dtype).expand_as(column)[..., None]


def toeplitz_eliminate(x: Any) -> tuple[Tensor, Tensor]:
    """The elimination of the kernels toeplitz_gko and toeplitz_eliminate, each step in torch operations.

    C has (l_i − m_j) C_ij = Σ_s left_si right_sj with l_i = e^{−2πi i/n}, m_j = e^{−πi (2j+1)/n}; left and right (S,2,n),
    rhs (S,R,n). Returns C⁻¹ rhs and, for every system, 0 or the 1-based step that found a column of zeros.
    """
    systems, _, n = x.left.shape
    left, right, rhs = x.left.clone(), x.right.clone(), x.rhs.clone()
    nodes = torch.arange(0, 2 * n, 2, device=left.device).expand(systems, n).clone()  # of rows; odd nodes are the solution's
    info = torch.zeros(systems, dtype=torch.int32, device=left.device)
    every, places = torch.arange(systems, device=left.device), torch.arange(n, device=left.device)

    def over_difference(sums: Tensor, row: Tensor, column: Tensor) -> Tensor:
        distance = (column - row).remainder(2 * n)  # in steps of half a node
        cotangent = torch.where(
            distance == 0, 0.0, 1 / torch.tan(distance.clamp_min(1).to(torch.float64) * (torch.pi / (2 * n)))
        )
        return sums * roots_of_unity(-row, 2 * n) * torch.complex(torch.full_like(cotangent, 0.5), -0.5 * cotangent)

    for k in range(n):
        column = over_difference((left * right[:, :, k, None]).sum(1), nodes, torch.tensor(2 * k + 1))
        pivot = torch.where(nodes % 2 == 0, column.abs(), -1.0).argmax(-1)
        size = column[every, pivot]
        info = torch.where((info == 0) & ~(size.abs() > 0), k + 1, info).to(torch.int32)
        pivot_left, pivot_rhs = left[every, :, pivot], rhs[every, :, pivot]
        row = over_difference((pivot_left[:, :, None] * right).sum(1), nodes[every, pivot][:, None], 2 * places + 1)
        right = torch.where(places > k, right - right[:, :, k, None] * (row / size[:, None])[:, None], right)
        factor = column / size[:, None]
        factor[every, pivot] = 1 / size  # for the identity's row, which replaces the pivot's row
        left[every, :, pivot], rhs[every, :, pivot] = 0, 0
        left = left - pivot_left[:, :, None] * factor[:, None]
        rhs = rhs - pivot_rhs[:, :, None] * factor[:, None]
        nodes[every, pivot] = 2 * k + 1
    order = ((nodes - 1) // 2).argsort(-1)
    return -rhs.gather(2, order[:, None].expand_as(rhs)), info
