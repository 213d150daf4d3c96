"""Shapes for tracing, CPU implementations and derivatives of the structured operators."""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import structured_ops as reference
from ..reference.structured_common import broadcast_shapes
from .gradients import Operator, leading_first
from .registration import cpu, fake

# ---- cauchy


def _cauchy_shape(v: Tensor, points: Tensor, poles: Tensor) -> Any:
    return (*broadcast_shapes(v.shape[:-1], points.shape[:-1], poles.shape[:-1]), points.shape[-1])


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
    *tensors, ctx.conj = inputs
    return tuple(tensors)


def _cauchy_gradients(ctx, grad):
    of, saved = ctx.needs_input_grad[:3], ctx.saved_tensors  # once: activation checkpointing gives them once
    found = cauchy_backward(grad, *saved, ctx.conj, *of)
    given = zip(found, saved, of, strict=True)
    return (*(x.sum_to_size(like.shape) if want else None for x, like, want in given), None)


def _cauchy_tangent(ctx, of_v, of_points, of_poles, _):
    """The sum is linear in v. Its derivative by a point is Σ −v/(ω − λ)², what a backward of ones gives conjugated; that by the
    poles times their tangents the negative of the same sum with the residues v λ̇."""
    v, points, poles = ctx.saved_tensors

    def slope(v):
        shape = (*broadcast_shapes(v.shape[:-1], points.shape[:-1], poles.shape[:-1]), points.shape[-1])
        ones = torch.ones_like(points).expand(shape)
        return torch.conj_physical(cauchy_backward(ones, v, points, poles, ctx.conj, False, True, False)[1])

    total = cauchy(torch.zeros_like(v) if of_v is None else of_v, points, poles, ctx.conj)
    if of_points is not None:
        total = total + of_points * slope(v)
    return total if of_poles is None else total - slope(v * of_poles)


def _batched_cauchy(in_dims, v, points, poles, conj):
    return cauchy(*leading_first(in_dims, (v, points, poles), (1, 1, 1)), conj), 0


def _keep_function(ctx, inputs, output):
    ctx.function = "cauchy_conj" if inputs[4] else "cauchy_kernel"
    return ()


def _no_second_gradients(ctx, *_):
    raise RuntimeError(f"{ctx.function}: gradients of gradients are not computed")


def _batched_cauchy_backward(in_dims, grad, v, points, poles, conj, *of):
    grad, v, points, poles = leading_first(in_dims, (grad, v, points, poles), (1, 1, 1, 1))
    leading = broadcast_shapes(*(x.shape[:-1] for x in (grad, v, points, poles)))  # those of the result, which grad has
    grad, v = (x.expand(*leading, x.shape[-1]) for x in (grad, v))
    found = cauchy_backward(grad, v, points, poles, conj, *of)
    return found, tuple(0 if want else None for want in of)


cauchy = Operator("cauchy", _keep_cauchy, _cauchy_gradients, _cauchy_tangent, _batched_cauchy)
cauchy_backward = Operator(
    "cauchy_backward", _keep_function, _no_second_gradients, _no_second_gradients, _batched_cauchy_backward
)


# ---- log_vandermonde


def _real(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype == torch.complex64 else torch.float64


@fake("log_vandermonde")
def _(v, x, L):
    return v.new_empty((*broadcast_shapes(v.shape[:-1], x.shape[:-1]), L), dtype=_real(v))


@cpu("log_vandermonde")
def _(v, x, L):
    return reference.log_vandermonde(v, x, L).contiguous()


fake("log_vandermonde_out")(lambda *args: None)


@cpu("log_vandermonde_out")
def _(v, x, L, out):
    out.copy_(reference.log_vandermonde(v, x, L))


@fake("log_vandermonde_moments")
def _(u, x, orders):
    return x.new_empty((orders, *broadcast_shapes(u.shape[:-1], x.shape[:-1]), x.shape[-1]))


@cpu("log_vandermonde_moments")
def _(u, x, orders):
    return reference.log_vandermonde_moments(u, x, orders).contiguous()


def _steps(like: Tensor, L: Any) -> Tensor:
    return torch.arange(L, dtype=like.dtype, device=like.device)


def _keep_vandermonde(ctx, inputs, output):
    v, x, ctx.L = inputs
    return v, x


def _vandermonde_gradients(ctx, grad):
    v, x = ctx.saved_tensors
    of_v, of_x = ctx.needs_input_grad[:2]
    sums = moments(grad, x, 2 if of_x else 1)
    return (
        (2 * torch.conj_physical(sums[0])).sum_to_size(v.shape) if of_v else None,
        (2 * torch.conj_physical(v * sums[1])).sum_to_size(x.shape) if of_x else None,
        None,
    )


def _vandermonde_tangent(ctx, of_v, of_x, _):
    v, x = ctx.saved_tensors
    total = log_vandermonde(torch.zeros_like(v) if of_v is None else of_v, x, ctx.L)
    if of_x is None:
        return total
    by_x = log_vandermonde(v * of_x, x, ctx.L)
    return total + _steps(by_x, ctx.L) * by_x


def _batched_vandermonde(in_dims, v, x, L):
    return log_vandermonde(*leading_first(in_dims, (v, x), (1, 1)), L), 0


def _keep_moments(ctx, inputs, output):
    u, x, ctx.orders = inputs
    return u, x


def _moments_gradients(ctx, grad):
    u, x = ctx.saved_tensors
    if ctx.orders != 1:
        raise RuntimeError("log_vandermonde, log_vandermonde_transpose: gradients of gradients are not computed")
    grad, of_u, of_x = grad[0], None, None
    if ctx.needs_input_grad[0]:
        of_u = (0.5 * log_vandermonde(torch.conj_physical(grad), x, u.shape[-1])).sum_to_size(u.shape)
    if ctx.needs_input_grad[1]:
        first = moments(u, x, 2)[1]
        of_x = (grad * torch.conj_physical(first)).sum_to_size(x.shape)
    return of_u, of_x, None


def _moments_tangent(ctx, of_u, of_x, _):
    """The derivative of Σ l^j u_l e^{x l} by x is the same sum of l u_l."""
    u, x = ctx.saved_tensors
    total = moments(torch.zeros_like(u) if of_u is None else of_u, x, ctx.orders)
    return total if of_x is None else total + of_x * moments(_steps(u, u.shape[-1]) * u, x, ctx.orders)


def _batched_moments(in_dims, u, x, orders):
    return moments(*leading_first(in_dims, (u, x), (1, 1)), orders), 1


log_vandermonde = Operator(
    "log_vandermonde", _keep_vandermonde, _vandermonde_gradients, _vandermonde_tangent, _batched_vandermonde
)
moments = Operator("log_vandermonde_moments", _keep_moments, _moments_gradients, _moments_tangent, _batched_moments)
