"""Parts of the structured operators' oracles: conversion to fp64, errors, and exact arithmetic.

Results stay in float64 or complex128; callers round them.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor

from ..operators.schema import refuse

_SPLITTER = 2.0**27 + 1.0  # splits a double into two parts of at most 26 bits


def widened(function: str, **tensors: Tensor) -> tuple[Tensor, ...]:
    """Each in complex128 if it is complex, else in float64."""
    for argument, x in tensors.items():
        if not (x.is_floating_point() or x.is_complex()):
            refuse(function, argument, "a real or complex floating-point tensor", x.dtype)
    return tuple(x.to(torch.complex128 if x.is_complex() else torch.float64) for x in tensors.values())


def same_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors))
    return tuple(x.to(dtype) for x in tensors)


def working_epsilon(*tensors: Tensor) -> float:
    """Epsilon of the arithmetic of a kernel: fp64 if any input is fp64, otherwise fp32."""
    return torch.finfo(reduce(torch.promote_types, (x.dtype for x in tensors), torch.float32)).eps


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """torch.broadcast_shapes for shapes that do broadcast: its first call imports sympy, which takes seconds."""
    sizes: list[int] = []
    for shape in shapes:
        sizes = [1] * (len(shape) - len(sizes)) + sizes
        for d in range(1, len(shape) + 1):
            if shape[-d] != 1:
                sizes[-d] = shape[-d]
    return tuple(sizes)


def check_last(function: str, argument: str, x: Tensor, size: int, like: str) -> None:
    """Torch would silently broadcast a last dimension of 1."""
    if x.dim() < 1 or x.shape[-1] != size:
        refuse(function, argument, f"(…, {size}) as {like} has", tuple(x.shape))


def zeros_of(shape: tuple[int, ...], *inputs: Tensor) -> Tensor:
    """An empty sum: zeros with zero gradients for every input, whatever its values."""
    return torch.stack([x[..., :0].sum() for x in inputs]).sum() + inputs[0].new_zeros(shape)


def exponents_of(size: Tensor) -> Tensor:
    """Exponents of the powers of two near `size`, in fp64, limited so that inverses are in range."""
    return torch.frexp(size).exponent.clamp(-1000, 1000).to(torch.float64)


def near_one(x: Tensor, *dims: int) -> tuple[Tensor, Tensor]:
    """x scaled by powers of two so that its largest values along `dims` are near 1, and the exponents that undo it."""
    size = x.detach().abs()
    largest = size.amax(dims, keepdim=True) if size.numel() else size.sum(dims, keepdim=True)
    exponents = exponents_of(largest)
    return x * torch.exp2(-exponents), exponents


def roots_of_unity(exponents: Tensor, order: int) -> Tensor:
    """e^{−2πi k/order} for integers k, which are reduced exactly, however large."""
    angle = exponents.remainder(order).to(torch.float64) * (-2 * math.pi / max(order, 1))
    return torch.polar(torch.ones_like(angle), angle)


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


@torch.no_grad()
def product_error(a: Tensor, b: Tensor) -> Tensor:
    """a·b − fl(a·b) exactly (Dekker) for real fp64; 0 where it, or a factor times `_SPLITTER`, is not finite."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return torch.where(torch.isfinite(error), error, 0.0)


def _sum_and_error(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """fl(a + b) and its rounding error (Knuth)."""
    total = a + b
    rounded_b = total - a
    return total, (a - (total - rounded_b)) + (b - rounded_b)


@torch.no_grad()
def residual(matrix: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """right − matrix x (…,n,k) as if in twice the precision, rounded once, for iterative refinement."""
    if matrix.is_complex():
        real = torch.cat([torch.cat([matrix.real, -matrix.imag], -1), torch.cat([matrix.imag, matrix.real], -1)], -2)
        halves = residual(real, torch.cat([x.real, x.imag], -2), torch.cat([right.real, right.imag], -2))
        return torch.complex(*halves.chunk(2, -2))
    total, rest = right, torch.zeros_like(right)
    for j in range(matrix.shape[-1]):
        column, row = -matrix[..., :, j, None], x[..., j, None, :]
        total, lost = _sum_and_error(total, column * row)
        rest = rest + lost + product_error(column, row)
    return total + rest
