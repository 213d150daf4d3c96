"""Shapes for tracing, CPU implementations and gradients of the structured operators."""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import structured_ops as reference
from .registration import cpu, fake, library

# ---- cauchy


def _cauchy_shape(v: Tensor, points: Tensor, poles: Tensor) -> Any:
    return (*torch.broadcast_shapes(v.shape[:-1], points.shape[:-1], poles.shape[:-1]), points.shape[-1])


@fake("cauchy")
def _(v, points, poles, conj):
    return v.new_empty(_cauchy_shape(v, points, poles))


@cpu("cauchy")
def _(v, points, poles, conj):
    return reference.cauchy(v, points, poles, conj).contiguous()


fake("cauchy_out")(lambda *args: None)  # it only writes into what it is given


@cpu("cauchy_out")
def _(v, points, poles, conj, out):
    out.copy_(reference.cauchy(v, points, poles, conj))


@fake("cauchy_backward")
def _(grad, v, points, poles, conj, of_v, of_points, of_poles):
    wanted = ((v, of_v), (points, of_points), (poles, of_poles))
    return tuple(x.new_empty((*grad.shape[:-1], x.shape[-1]) if want else (0,)) for x, want in wanted)


@cpu("cauchy_backward")
def _(*args):
    return tuple(x.contiguous() for x in reference.cauchy_backward(*args))


def _keep_cauchy(ctx, inputs, output):
    v, points, poles, ctx.conj = inputs
    ctx.save_for_backward(v, points, poles)


def _cauchy_gradients(ctx, grad):
    of, saved = ctx.needs_input_grad[:3], ctx.saved_tensors  # once: activation checkpointing gives them once
    found = torch.ops.gdn_cuda.cauchy_backward(grad, *saved, ctx.conj, *of)
    given = zip(found, saved, of, strict=True)
    return (*(x.sum_to_size(like.shape) if want else None for x, like, want in given), None)


torch.library.register_autograd("gdn_cuda::cauchy", _cauchy_gradients, setup_context=_keep_cauchy, lib=library)


def _keep_nothing(ctx, inputs, output):
    ctx.function = "cauchy_conj" if inputs[4] else "cauchy_kernel"


def _no_gradients(ctx, *grads):
    raise RuntimeError(f"{ctx.function}: gradients of gradients are not computed")


torch.library.register_autograd("gdn_cuda::cauchy_backward", _no_gradients, setup_context=_keep_nothing, lib=library)


# ---- log_vandermonde


def _real(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype == torch.complex64 else torch.float64


@fake("log_vandermonde")
def _(v, x, L):
    return v.new_empty((*torch.broadcast_shapes(v.shape[:-1], x.shape[:-1]), L), dtype=_real(v))


@cpu("log_vandermonde")
def _(v, x, L):
    return reference.log_vandermonde(v, x, L).contiguous()


fake("log_vandermonde_out")(lambda *args: None)


@cpu("log_vandermonde_out")
def _(v, x, L, out):
    out.copy_(reference.log_vandermonde(v, x, L))


@fake("log_vandermonde_moments")
def _(u, x, orders):
    return x.new_empty((orders, *torch.broadcast_shapes(u.shape[:-1], x.shape[:-1]), x.shape[-1]))


@cpu("log_vandermonde_moments")
def _(u, x, orders):
    return reference.log_vandermonde_moments(u, x, orders).contiguous()


def _keep_vandermonde(ctx, inputs, output):
    v, x, _ = inputs
    ctx.save_for_backward(v, x)


def _vandermonde_gradients(ctx, grad):
    v, x = ctx.saved_tensors
    of_v, of_x = ctx.needs_input_grad[:2]
    moments = torch.ops.gdn_cuda.log_vandermonde_moments(grad, x, 2 if of_x else 1)
    return (
        (2 * torch.conj_physical(moments[0])).sum_to_size(v.shape) if of_v else None,
        (2 * torch.conj_physical(v * moments[1])).sum_to_size(x.shape) if of_x else None,
        None,
    )


torch.library.register_autograd(
    "gdn_cuda::log_vandermonde", _vandermonde_gradients, setup_context=_keep_vandermonde, lib=library
)


def _keep_moments(ctx, inputs, output):
    u, x, ctx.orders = inputs
    ctx.save_for_backward(u, x)


def _moments_gradients(ctx, grad):
    u, x = ctx.saved_tensors
    if ctx.orders != 1:
        raise RuntimeError("log_vandermonde, log_vandermonde_transpose: gradients of gradients are not computed")
    grad, of_u, of_x = grad[0], None, None
    if ctx.needs_input_grad[0]:
        of_u = (0.5 * torch.ops.gdn_cuda.log_vandermonde(torch.conj_physical(grad), x, u.shape[-1])).sum_to_size(u.shape)
    if ctx.needs_input_grad[1]:
        first = torch.ops.gdn_cuda.log_vandermonde_moments(u, x, 2)[1]
        of_x = (grad * torch.conj_physical(first)).sum_to_size(x.shape)
    return of_u, of_x, None


torch.library.register_autograd(
    "gdn_cuda::log_vandermonde_moments", _moments_gradients, setup_context=_keep_moments, lib=library
)
