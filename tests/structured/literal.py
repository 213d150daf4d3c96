"""The definitions of the structured operators as literal sums, independent of gdn_cuda.

CPU tensors run gdn_cuda.reference, and long GPU products torch's transforms: neither can be its own expected value. Sums are
computed in x86's 80 bits, or in fp64 by short blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
BLOCK = 512


def _wide(x: Tensor) -> Array:
    return (
        x.detach()
        .cpu()
        .to(torch.complex128 if x.is_complex() else torch.float64)
        .numpy()
        .astype(np.clongdouble if x.is_complex() else np.longdouble)
    )


def _narrow(x: Array) -> Tensor:
    return torch.from_numpy(np.asarray(x, dtype=np.complex128 if np.iscomplexobj(x) else np.float64))


def cauchy_kernel(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    """Σ_n v_n / (ω_l − λ_n); no pole on a point."""
    v, omega, lambd = (_wide(x) for x in (v, omega, lambd))
    return _narrow((v[..., None, :] / (omega[..., :, None] - lambd[..., None, :])).sum(-1))


def cauchy_conj(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    v, z, w = (_wide(x.to(torch.complex128)) for x in (v, z, w))
    return _narrow(
        sum((a[..., None, :] / (z[..., :, None] - b[..., None, :])).sum(-1) for a, b in ((v, w), (v.conj(), w.conj())))
    )


def powers(x: Tensor, L: int) -> Array:
    """e^{x l} (…,N,L) in 80-bit precision at phases of 1e6 rad: x is split into halves whose products with l are exact."""
    wide, steps = _wide(x.to(torch.complex128)), np.arange(L, dtype=np.longdouble)
    total = np.ones((*wide.shape, L), dtype=np.clongdouble)
    for part, unit in ((wide.real, 1), (wide.imag, 1j)):
        high = part.astype(np.float32).astype(np.longdouble)
        for half in (high, part - high):
            exponent = half[..., None] * steps
            total = total * (np.exp(exponent) if unit == 1 else np.cos(exponent) + 1j * np.sin(exponent))
    return total


def log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    """2 Re Σ_n v_n e^{x_n l}"""
    return _narrow(2 * (_wide(v.to(torch.complex128))[..., None] * powers(x, L)).sum(-2).real)


def log_vandermonde_transpose(u: Tensor, v: Tensor, x: Tensor, L: int) -> Tensor:
    """v_n Σ_l u_l e^{x_n l}"""
    return _narrow(_wide(v.to(torch.complex128)) * (_wide(u)[..., None, :] * powers(x, L)).sum(-1))


def toeplitz(c: Tensor, r: Tensor) -> Tensor:
    """The matrix (…,n,m), entry by entry: c[i − j] for i ≥ j, else r[j − i]."""
    leading = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1])
    dtype = torch.promote_types(torch.promote_types(c.dtype, r.dtype), torch.float64)
    c, r = (y.to(dtype).expand(*leading, y.shape[-1]) for y in (c, r))
    matrix = torch.zeros(*leading, c.shape[-1], r.shape[-1], dtype=dtype, device=c.device)
    for i in range(c.shape[-1]):
        below = min(i + 1, r.shape[-1])
        matrix[..., i, :below] = c[..., i - below + 1 : i + 1].flip(-1)
        matrix[..., i, below:] = r[..., 1 : max(r.shape[-1] - i, 1)]
    return matrix


def toeplitz_matvec(c: Tensor, r: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """T x or Tᵀ x in fp64, differentiable, on any device and for any n: panels of `BLOCK` rows and columns, added in order, so
    that the error of a sum stays below 10 epsilon."""
    many = x.dim() > max(c.dim(), r.dim())
    dtype = torch.promote_types(torch.promote_types(torch.promote_types(c.dtype, r.dtype), x.dtype), torch.float64)
    c, r, x = c.to(dtype), r.to(dtype), (x if many else x[..., None]).to(dtype)
    leading = torch.broadcast_shapes(c.shape[:-1], r.shape[:-1])
    rows, columns = c.shape[-1], r.shape[-1]
    c, r = c.expand(*leading, rows), r.expand(*leading, columns)
    # Element p of `diagonals` belongs to diagonal i − j = p − columns + 1.
    diagonals = torch.cat([r[..., 1:].flip(-1), c], -1)
    to, of = (columns, rows) if transpose else (rows, columns)
    parts = []
    for first in range(0, to, BLOCK):
        total: Any = 0
        height = min(BLOCK, to - first)
        for start in range(0, of, BLOCK):
            width = min(BLOCK, of - start)
            i, j = (start, first) if transpose else (first, start)
            tall, wide = (width, height) if transpose else (height, width)
            window = diagonals[..., i - (j + wide - 1) + columns - 1 : i + tall - 1 - j + columns].unfold(-1, wide, 1).flip(-1)
            panel = window.mT if transpose else window
            total = total + panel @ x[..., start : start + width, :]
        parts.append(total)
    shape = torch.broadcast_shapes(leading, x.shape[:-2])
    out = torch.cat(parts, -2) if parts and of else x.new_zeros(*shape, to, x.shape[-1])
    return out if many else out.squeeze(-1)


def backward_error(c: Tensor, r: Tensor, x: Tensor, b: Tensor) -> float:
    """‖b − T x‖ / (‖T‖ ‖x‖), the maximum over the systems, with the norm of the sums of |c| and |r| for ‖T‖."""
    rest = b.to(torch.promote_types(b.dtype, torch.float64)) - toeplitz_matvec(c, r, x)
    many = b.dim() > max(c.dim(), r.dim())
    dims = (-1, -2) if many else (-1,)
    size = c.abs().double().sum(-1) + r[..., 1:].abs().double().sum(-1)
    return float((rest.abs().square().sum(dims).sqrt() / (size * x.abs().double().square().sum(dims).sqrt())).max())
