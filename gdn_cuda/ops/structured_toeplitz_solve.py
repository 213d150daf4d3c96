"""How Toeplitz systems are solved on a GPU: which way, and what surrounds the kernels. Nothing here waits for the device.

All of it is fp64 arithmetic, whatever the tensors have: a step of an elimination waits for barriers and not for arithmetic, and
the result is as good as one with refinement. It runs on any device: the kernels have CPU implementations.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..reference.structured_common import exponents_of
from ..reference.structured_toeplitz_ops import matvec_by_transforms, widened
from .structured_toeplitz_pcg import RESIDUALS, solve_by_pcg

# Rows of what one block solves, and a cluster of blocks (csrc/jit_kernels/heuristics/structured_toeplitz.hpp).
GKO_LONGEST, SCHUR_LONGEST, PCG_LONGEST = 1024, 4096, 8192
ELIMINATE_SHORTEST, ELIMINATE_LONGEST = 513, 8192
# Conjugate gradients take few long steps, Schur's recursion n short ones: some 0.2 and 1.27 ms for 2048 rows on an H200.
PCG_SHORTEST = 1025

_ops = torch.ops.gdn_cuda


def explain_toeplitz_solve(n: int, symmetric: bool = False) -> str:
    """Which way systems of n rows take on a GPU, and why; symmetric ones where the caller waits to know how it went."""
    if n <= GKO_LONGEST:
        general = f"toeplitz_gko: {n} rows fit one block, which pivots and stores no factor"
        if n >= ELIMINATE_SHORTEST:
            general += (
                "; toeplitz_eliminate by clusters of blocks, where the GPU has them and the systems need not queue for them"
            )
    elif n <= ELIMINATE_LONGEST:
        general = (
            f"toeplitz_eliminate: {n} rows fit a cluster of blocks, which pivots and stores no factor; "
            "a dense LU in fp64 where the GPU has no clusters of this size"
        )
    else:
        general = (
            f"dense LU in fp64: {n} rows are more than the {ELIMINATE_LONGEST} of a cluster of blocks; "
            "n² numbers of memory a system"
        )
    if not symmetric:
        return general
    ways = []
    if PCG_SHORTEST <= n <= PCG_LONGEST:
        ways += [f"toeplitz_pcg: {n} rows fit one block of conjugate gradients; where they do not converge"]
    if n <= SCHUR_LONGEST:
        ways += [f"toeplitz_schur: {n} rows fit one block; where T is not positive definite"]
    if n > PCG_LONGEST:
        ways += [f"conjugate gradients in torch operations: {n} rows are more than one block's; where they do not converge"]
    return ", ".join([*ways, general])


def solve_symmetric(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(x, info) for real c and b on a GPU, waiting: ways for positive definite matrices first, the quickest before the others,
    and pivots if they must be. info is on the CPU where it has been looked at: one copy is all that is waited for."""
    n = c.shape[-1]
    ways: list[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = []
    if PCG_SHORTEST <= n <= PCG_LONGEST:
        ways += [_by_pcg]
    if n <= SCHUR_LONGEST:
        ways += [_by_recursion]
    if n > PCG_LONGEST:
        ways += [_ops.toeplitz_pcg_long]
    for way in ways:
        x, info = way(c, b)
        info = info.cpu()
        if not bool((info < 0).any()):
            return x, info
    return _ops.toeplitz_solve(c, c, b, True)


def solve_positive(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(x, info) for real c and b and at most `PCG_LONGEST` rows; info is −k where the minor of order k is not positive, beyond
    `SCHUR_LONGEST` rows −1 where conjugate gradients do not come to an end."""
    return _by_recursion(c, b) if c.shape[-1] <= SCHUR_LONGEST else _by_pcg(c, b)


def _by_pcg(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    x, told = _ops.toeplitz_pcg(c, b, _epsilon(c.dtype))
    if told.shape == c.shape[:-1]:
        return x, told
    fails = _of_matrices((told < 0).to(torch.int32), c.shape[:-1]) > 0  # with some right-hand sides, not with others
    return x, _of_matrices(told, c.shape[:-1]).where(~fails, -1)


def _by_recursion(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    epsilon = _epsilon(c.dtype)
    x, info = _ops.toeplitz_schur(c, b, epsilon)
    if c.dtype == torch.float64:  # its rounding is that of the inputs: one step of refinement, and its derivatives are x's
        x = x.detach()
        x = _corrected(x, _ops.toeplitz_schur(c, b - _ops.toeplitz_matvec(c, c, x, False), epsilon)[0])
    return x, _of_matrices(info, c.shape[:-1])


def _corrected(x: Tensor, correction: Tensor) -> Tensor:
    """Products of huge numbers overflow in transforms long before they do themselves: no correction then."""
    return torch.where(correction.isfinite(), x + correction, x)


def solve_long_by_pcg(c: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(x, info) of conjugate gradients in torch operations; info is −1 where they do not converge. Waits for the device."""
    n, many = c.shape[-1], b.dim() > c.dim()
    right = b if many else b[..., None]
    batch = torch.broadcast_shapes(c.shape[:-1], right.shape[:-2])
    shape, k = (*batch, *right.shape[-2:]), right.shape[-1]
    x, info = b.new_zeros(shape), torch.zeros(c.shape[:-1], dtype=torch.int32, device=c.device)
    if n and math.prod(batch):
        epsilon, residual = _epsilon(c.dtype), RESIDUALS[c.dtype]
        column, _, numbers, scale = _scaled(c, c, right)
        of_right = torch.exp2(-exponents_of(numbers.abs().amax(1, keepdim=True)))
        allowed = numbers.new_tensor([residual] * k + [max(residual, epsilon / 8)])  # info asks the probe for no more
        found = solve_by_pcg(column, numbers * of_right, allowed)
        if found is None:
            x, info = x.fill_(torch.nan), info.fill_(-1)
        else:
            x = (found * (scale[..., None] / of_right))[..., :k].to(b.dtype).reshape(shape).contiguous()
            told = _told(column, column, (found / of_right)[..., k:], torch.zeros_like(column[:, 0]), epsilon)
            info = _of_matrices(told.reshape(batch), c.shape[:-1])
    return x if many else x.squeeze(-1), info


def solve(c: Tensor, r: Tensor, b: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """(x, info) for checked inputs of one dtype; see `toeplitz_solve_ex`."""
    n, many = c.shape[-1], b.dim() > max(c.dim(), r.dim())
    of_matrix = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1])
    systems = math.prod(torch.broadcast_shapes(of_matrix, b.shape[: -2 if many else -1]))
    epsilon = _epsilon(c.dtype)
    if n and systems and _ops.toeplitz_eliminate_pays(c, systems, (b.shape[-1] if many else 1) + 1, n):
        eliminate = by_transforms
    elif n and n <= GKO_LONGEST:
        eliminate = _ops.toeplitz_gko
    else:
        return _by_dense_lu(c, r, b, epsilon)
    x, info = eliminate(c, r, b, epsilon)
    if c.dtype in (torch.float64, torch.complex128):
        # Growing generators cost GKO a digit or two: nothing where results are rounded to fp32. A correction brings them back.
        x = _corrected(x, eliminate(c, r, b - _product(c, r, x, many), epsilon)[0])
    return x, _of_matrices(info, of_matrix)


def by_transforms(c: Tensor, r: Tensor, b: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The elimination of structured/toeplitz_gko between transforms, info for every leading index of the result; any device."""
    n, many = c.shape[-1], b.dim() > max(c.dim(), r.dim())
    batch = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], b.shape[: -2 if many else -1])
    shape = (*batch, *b.shape[-2:]) if many else (*batch, n)
    if n == 0 or math.prod(batch) == 0:
        return b.new_zeros(shape), torch.zeros(batch, dtype=torch.int32, device=c.device)
    left, right, numbers, scales = _ops.toeplitz_generators(c, r, b)
    found, info = _ops.toeplitz_eliminate(left, right, numbers, -1)
    x = torch.fft.ifft(found, norm="ortho") * half_turns(n, c.device)
    if not c.is_complex():
        x = x.real
    conditioned = scales[:, 1] * x[:, -1].abs().amax(-1) <= 1 / epsilon  # False for NaN
    scale = torch.where(info > 0, torch.nan, scales[:, 0])
    info = torch.where((info == 0) & ~conditioned, n + 1, info)
    x = (x[:, :-1] * scale[:, None, None]).to(b.dtype).mT.reshape(shape)
    return x.contiguous(), info.reshape(batch)


def _product(c: Tensor, r: Tensor, x: Tensor, many: bool) -> Tensor:
    if c.shape[-1] <= GKO_LONGEST:  # as many numbers as one block transforms in every dtype
        return _ops.toeplitz_matvec(c, r, x, False)
    return matvec_by_transforms(c, r, x) if many else matvec_by_transforms(c, r, x[..., None]).squeeze(-1)


def half_turns(n: int, device: torch.device) -> Tensor:
    """e^{πi k/n}"""
    angles = torch.arange(n, dtype=torch.float64, device=device) * (math.pi / n)
    return torch.complex(angles.cos(), angles.sin())


def generators(c: Tensor, r: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the kernel structured/toeplitz_generators does: Z_1 T − T Z_{−1} has rank 2, its first row and last column; with F
    the unitary DFT and D = diag(e^{−πi k/n}), F Z_1 F⁻¹ and F D Z_{−1} (F D)⁻¹ are diagonal, so C = F T (F D)⁻¹ is what is
    eliminated."""
    n, many = c.shape[-1], b.dim() > max(c.dim(), r.dim())
    right = b if many else b[..., None]
    systems = math.prod(torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], right.shape[:-2]))
    if n == 0 or systems == 0:
        empty = (b.new_zeros((systems, rows, n), dtype=torch.complex128) for rows in (2, 2, right.shape[-1] + 1))
        return *empty, b.new_zeros((systems, 2), dtype=torch.float64)
    column, row, numbers, scale = _scaled(c, r, right)
    norm = torch.maximum(column.abs().sum(-1), row.abs().sum(-1))  # of the last column, that of the row
    first, last = torch.zeros_like(column), torch.zeros_like(column)
    first[:, :1] = last[:, -1:] = 1
    back = row[:, 1:].flip(-1)
    of_rows = torch.stack([first, torch.cat([column[:, :1], back + column[:, 1:]], -1)], 1)
    of_columns = torch.stack([torch.cat([column[:, 1:].flip(-1) - row[:, 1:], column[:, :1]], -1), last], 1)
    sides = of_rows, of_columns * half_turns(n, c.device), numbers.mT
    transforms = torch.fft.fft, torch.fft.ifft, torch.fft.fft
    found = (f(x.to(torch.complex128), norm="ortho").contiguous() for f, x in zip(transforms, sides, strict=True))
    return *found, torch.stack([scale[:, 0], norm], -1)


def _scaled(c: Tensor, r: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Column and row (S,n) in fp64, times powers of two, right-hand sides (S,n,k+1) with the probe behind them, and those
    powers (S,1): nothing is rounded, and squares of pivots do not leave the range."""
    n = c.shape[-1]
    batch = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], right.shape[:-2])
    column, row = (widened(y).expand(*batch, n).reshape(-1, n) for y in (c, r))
    row = torch.cat([column[:, :1], row[:, 1:]], -1)  # r[0] is not read
    largest = torch.maximum(column.abs().amax(-1), row.abs().amax(-1))
    scale = torch.exp2(-exponents_of(largest))[:, None]
    numbers = widened(right).expand(*batch, *right.shape[-2:]).reshape(len(column), n, right.shape[-1])
    return column * scale, row * scale, torch.cat([numbers, _probe(column)], -1), scale


def _probe(column: Tensor) -> Tensor:
    """One more right-hand side (S,n,1): signs, the same at every call, without a pattern that a matrix might have."""
    places = torch.arange(column.shape[-1], device=column.device)
    mixed = (places * 2654435761 + 1013904223) % 4294967296
    signs = 1 - 2 * (mixed * mixed // 65536 % 2)
    return signs.to(column.dtype).expand_as(column)[..., None]


def _epsilon(dtype: torch.dtype) -> float:
    """In fp64 rounding alone keeps a singular matrix a few digits from it: there epsilon counts eight times."""
    epsilon = torch.finfo(dtype).eps
    return epsilon if epsilon > 1e-10 else 8 * epsilon


def _told(column: Tensor, row: Tensor, probed: Tensor, info: Tensor, epsilon: float) -> Tensor:
    """n + 1 where 1 / (‖T‖₁ ‖T⁻¹ z‖_∞) is below epsilon, z random signs, as LAPACK's xGESVX with the last norm for ‖T⁻¹‖₁: a
    bound from below, as ‖T⁻¹‖_∞ = ‖T⁻¹‖₁ for Toeplitz matrices."""
    n = column.shape[-1]
    sums = column.abs().cumsum(-1).flip(-1) + row.abs().cumsum(-1) - row[:, :1].abs()  # of the columns of |T|
    conditioned = sums.amax(-1) * probed.abs().amax((-2, -1)) <= 1 / epsilon  # False for NaN
    return torch.where((info == 0) & ~conditioned, n + 1, info).to(torch.int32)


def _of_matrices(info: Tensor, shape: torch.Size) -> Tensor:
    """Right-hand sides may have a batch that the matrices have not: they were told the same."""
    info = info.reshape((1,) * max(0, len(shape) - info.dim()) + info.shape)
    while info.dim() > len(shape):
        info = info.amax(0) if info.shape[0] else info.new_zeros(info.shape[1:])
    for d, size in enumerate(shape):
        if info.shape[d] != size:
            one = (*info.shape[:d], 1, *info.shape[d + 1 :])
            info = info.amax(d, keepdim=True) if info.shape[d] else info.new_zeros(one)
    return info.contiguous()


def _by_dense_lu(c: Tensor, r: Tensor, b: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    n, many = c.shape[-1], b.dim() > max(c.dim(), r.dim())
    right = b if many else b[..., None]
    of_matrix = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1])
    batch = torch.broadcast_shapes(of_matrix, right.shape[:-2])
    shape, k = (*batch, *right.shape[-2:]), right.shape[-1]
    if n == 0 or math.prod(batch) == 0:
        x = b.new_zeros(shape)
        return x if many else x.squeeze(-1), torch.zeros(of_matrix, dtype=torch.int32, device=c.device)

    column, row, numbers, scale = _scaled(c, r, right)
    diagonals = torch.cat([row[:, 1:].flip(-1), column], -1)
    matrix = diagonals.unfold(-1, n, 1).flip(-1)  # no n² indices
    lu, pivots, info = torch.linalg.lu_factor_ex(matrix)
    # Some of the libraries behind it call a later pivot than the first zero, the last they saw.
    none = ~(lu.diagonal(dim1=-2, dim2=-1).abs() > 0)
    info = torch.where(none.any(-1), none.to(torch.int32).argmax(-1) + 1, info).to(torch.int32)
    found = torch.linalg.lu_solve(lu, pivots, numbers)

    info = _told(column, row, found[..., k:], info, epsilon)
    x = found[..., :k] * scale[..., None]
    x = torch.where(((info > 0) & (info <= n))[:, None, None], torch.nan, x).to(b.dtype).reshape(shape).contiguous()
    return x if many else x.squeeze(-1), _of_matrices(info.reshape(batch), of_matrix)
