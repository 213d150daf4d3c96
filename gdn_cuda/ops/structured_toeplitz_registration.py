"""Shapes for tracing, CPU implementations and gradients of the Toeplitz operators; what solves on the GPU."""

# mypy: allow-untyped-defs

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..reference import structured_toeplitz_ops as reference
from .registration import cpu, fake, library
from .structured_toeplitz_solve import by_transforms, generators, solve, solve_long_by_pcg

_ops = torch.ops.gdn_cuda

# What one block transforms (heuristics/structured_toeplitz.hpp); beyond, torch's own transforms.
_LONGEST = {torch.float32: 8192, torch.float64: 4096, torch.complex64: 2048, torch.complex128: 1024}


def product(c: Tensor, r: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """T x or Tᵀ x for inputs of one dtype that is computed with."""
    if not c.is_cuda or c.dim() == 0 or c.shape[-1] <= _LONGEST[c.dtype]:
        return _ops.toeplitz_matvec(c, r, x, transpose)
    _ops.validate_toeplitz_matvec(c, r, x, transpose)
    many = x.dim() > max(c.dim(), r.dim())
    first = reference.transposed(c, r) if transpose else (c, r)
    out = reference.matvec_by_transforms(*first, x if many else x[..., None])
    return out if many else out.squeeze(-1)


def product_shape(c: Tensor, r: Tensor, x: Tensor) -> tuple[Any, ...]:
    tail = 2 if x.dim() > max(c.dim(), r.dim()) else 1
    return (*torch.broadcast_shapes(c.shape[:-1], r.shape[:-1], x.shape[:-tail]), *x.shape[-tail:])


def _as_columns(c: Tensor, r: Tensor, x: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """x and others, which have its shape or a broadcast one, with their right-hand sides in front: (…,k,n)."""
    many = x.dim() > max(c.dim(), r.dim())
    return tuple(y.mT if many else y[..., None, :] for y in (x, *others))


def _matrix_gradients(c: Tensor, r: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Of c and r where the gradient of T is Σ left rightᴴ, both (…,k,n): sums along diagonals are Toeplitz products."""
    conjugate = torch.conj_physical(right)
    zero = torch.zeros_like(conjugate[..., 1:])
    # Σ_j left_{j+d} conj(right_j) for c, Σ_j left_j conj(right_{j+d}) for r: upper triangular matrices, times a vector.
    of_c = product(torch.cat([conjugate[..., :1], zero], -1), conjugate, left, False)
    of_r = product(torch.cat([left[..., :1], zero], -1), left, conjugate, False)
    of_r = torch.cat([torch.zeros_like(of_r[..., :1]), of_r[..., 1:]], -1)  # r[0] is not read
    return of_c.sum(-2).sum_to_size(c.shape), of_r.sum(-2).sum_to_size(r.shape)


# ---- toeplitz_matvec


fake("validate_toeplitz_matvec")(lambda *args: None)  # `product` is traced through


@fake("toeplitz_matvec")
def _(c, r, x, transpose):
    return x.new_empty(product_shape(c, r, x))


@cpu("toeplitz_matvec")
def _(c, r, x, transpose):
    return reference.toeplitz_matvec(c, r, x, transpose).contiguous()


def _keep_matvec(ctx, inputs, output):
    c, r, x, ctx.transpose = inputs
    ctx.save_for_backward(c, r, x)


def _matvec_gradients(ctx, grad):
    c, r, x = ctx.saved_tensors
    of_c = of_r = of_x = None
    if ctx.needs_input_grad[2]:
        of_x = _ops.toeplitz_matvec(torch.conj_physical(c), torch.conj_physical(r), grad, not ctx.transpose)
        of_x = of_x.sum_to_size(x.shape)
    if any(ctx.needs_input_grad[:2]):
        right, left = _as_columns(c, r, x, grad)
        right, left = torch.broadcast_tensors(right, left)
        if ctx.transpose:  # the gradient of Tᵀ is transposed
            left, right = torch.conj_physical(right), torch.conj_physical(left)
        of_c, of_r = _matrix_gradients(c, r, left, right)
    return of_c, of_r, of_x, None


torch.library.register_autograd("gdn_cuda::toeplitz_matvec", _matvec_gradients, setup_context=_keep_matvec, lib=library)


# ---- toeplitz_solve: the solution and info


@fake("toeplitz_solve")
def _(c, r, b, symmetric):
    info = c.new_empty(torch.broadcast_shapes(c.shape[:-1], r.shape[:-1]), dtype=torch.int32)
    return b.new_empty(product_shape(c, r, b)), info


@cpu("toeplitz_solve")
def _(c, r, b, symmetric):
    x, info = reference.toeplitz_solve(c, r, b)
    return x.contiguous(), info.contiguous()


def _solve_on_gpu(c, r, b, symmetric):
    _ops.validate_toeplitz_solve(c, r, b, symmetric)
    return solve(c, r, b, symmetric)


library.impl("toeplitz_solve", _solve_on_gpu, "CUDA")


def _keep_solve(ctx, inputs, output):
    c, r, b, ctx.symmetric = inputs
    ctx.save_for_backward(c, r, b, output[0])
    ctx.mark_non_differentiable(output[1])


def _solve_gradients(ctx, grad, _):
    c, r, b, x = ctx.saved_tensors
    column, row = (torch.conj_physical(y) for y in reference.transposed(c, r))
    grad_b, _ = _ops.toeplitz_solve(column, row, grad, ctx.symmetric)
    of_c = of_r = None
    if any(ctx.needs_input_grad[:2]):
        right, left = _as_columns(c, r, x, -grad_b)
        of_c, of_r = _matrix_gradients(c, r, left, right)
    return of_c, of_r, grad_b.sum_to_size(b.shape), None


torch.library.register_autograd("gdn_cuda::toeplitz_solve", _solve_gradients, setup_context=_keep_solve, lib=library)


# ---- toeplitz_schur, toeplitz_pcg and toeplitz_pcg_long: symmetric positive definite ones


def _positive_shapes(c, b, epsilon):
    shape = product_shape(c, c, b)
    return b.new_empty(shape), c.new_empty(shape[: -2 if b.dim() > c.dim() else -1], dtype=torch.int32)


fake("toeplitz_schur")(_positive_shapes)
fake("toeplitz_pcg")(_positive_shapes)


@cpu("toeplitz_schur")
def _(c, b, epsilon):
    return tuple(y.contiguous() for y in reference.toeplitz_schur(c, b))


@cpu("toeplitz_pcg")
def _(c, b, epsilon):
    x, info = reference.toeplitz_schur(c, b)
    return x.contiguous(), info.clamp_min(-1)


@fake("toeplitz_pcg_long")
def _(c, b):
    return b.new_empty(product_shape(c, c, b)), c.new_empty(c.shape[:-1], dtype=torch.int32)


@cpu("toeplitz_pcg_long")
def _(c, b):
    return tuple(y.contiguous() for y in solve_long_by_pcg(c, b))


def _pcg_long_on_gpu(c, b):
    _ops.validate_toeplitz_pcg_long(c, b)
    return solve_long_by_pcg(c, b)


library.impl("toeplitz_pcg_long", _pcg_long_on_gpu, "CUDA")


def _keep_symmetric(ctx, inputs, output):
    c, b, *ctx.rest = inputs
    ctx.save_for_backward(c, b, output[0])
    ctx.mark_non_differentiable(output[1])


def _gradients_of(name):
    def gradients(ctx, grad, _):
        c, b, x = ctx.saved_tensors
        grad_b, _ = getattr(_ops, name)(c, grad, *ctx.rest)
        of_c = None
        if ctx.needs_input_grad[0]:
            right, left = _as_columns(c, c, x, -grad_b)
            of_c = sum(_matrix_gradients(c, c, left, right))
        return of_c, grad_b.sum_to_size(b.shape), *(None for _ in ctx.rest)

    return gradients


for _name in ("toeplitz_schur", "toeplitz_pcg", "toeplitz_pcg_long"):
    torch.library.register_autograd(f"gdn_cuda::{_name}", _gradients_of(_name), setup_context=_keep_symmetric, lib=library)


# ---- toeplitz_gko: the kernel behind it


@fake("toeplitz_gko")
def _(c, r, b, epsilon):
    shape, many = product_shape(c, r, b), b.dim() > max(c.dim(), r.dim())
    return b.new_empty(shape), c.new_empty(shape[: -2 if many else -1], dtype=torch.int32)


@cpu("toeplitz_gko")
def _(c, r, b, epsilon):
    return tuple(y.contiguous() for y in by_transforms(c, r, b, epsilon))


# ---- toeplitz_generators and toeplitz_eliminate: the kernels behind it for long ones


@fake("toeplitz_generators")
def _(c, r, b):
    shape = product_shape(c, r, b) if b.dim() > max(c.dim(), r.dim()) else (*product_shape(c, r, b), 1)
    *batch, n, columns = shape
    systems = math.prod(batch)
    sides = (b.new_empty((systems, rows, n), dtype=torch.complex128) for rows in (2, 2, columns + 1))
    return *sides, b.new_empty((systems, 2), dtype=torch.float64)


@cpu("toeplitz_generators")
def _(c, r, b):
    return generators(c, r, b)


@fake("toeplitz_eliminate")
def _(left, right, numbers, configuration):
    return torch.empty_like(numbers), left.new_empty(left.shape[:1], dtype=torch.int32)


@cpu("toeplitz_eliminate")
def _(left, right, numbers, configuration):
    return tuple(y.contiguous() for y in reference.toeplitz_gko(left, right, numbers))


library.impl("toeplitz_eliminate_pays", lambda like, systems, columns, n: False, "CPU")
