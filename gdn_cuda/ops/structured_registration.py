"""Shapes for tracing, CPU implementations and gradients of the structured operators."""

# mypy: allow-untyped-defs

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..reference import structured_ops as reference
from .gdn_registration import _cpu, _fake, _library

# ---- cauchy


def _cauchy_shape(v: Tensor, points: Tensor, poles: Tensor) -> Any:
    return (*torch.broadcast_shapes(v.shape[:-1], points.shape[:-1], poles.shape[:-1]), points.shape[-1])


@_fake("cauchy")
def _(v, points, poles, conj):
    return v.new_empty(_cauchy_shape(v, points, poles))


@_cpu("cauchy")
def _(v, points, poles, conj):
    return reference.cauchy(v, points, poles, conj).contiguous()


@_fake("cauchy_backward")
def _(grad, v, points, poles, conj, of_v, of_points, of_poles):
    wanted = ((v, of_v), (points, of_points), (poles, of_poles))
    return tuple(x.new_empty((*grad.shape[:-1], x.shape[-1]) if want else (0,)) for x, want in wanted)


@_cpu("cauchy_backward")
def _(*args):
    return tuple(x.contiguous() for x in reference.cauchy_backward(*args))


def _keep_cauchy(ctx, inputs, output):
    v, points, poles, ctx.conj = inputs
    ctx.save_for_backward(v, points, poles)


def _cauchy_gradients(ctx, grad):
    of = ctx.needs_input_grad[:3]
    found = torch.ops.gdn_cuda.cauchy_backward(grad, *ctx.saved_tensors, ctx.conj, *of)
    given = zip(found, ctx.saved_tensors, of, strict=True)
    return (*(x.sum_to_size(like.shape) if want else None for x, like, want in given), None)


torch.library.register_autograd("gdn_cuda::cauchy", _cauchy_gradients, setup_context=_keep_cauchy, lib=_library)
