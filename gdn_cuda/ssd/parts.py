"""Gradients of parts of sequences (gdn_cuda/parallel). Each is a call of ssd_scan, the arguments as attributes of x."""

from __future__ import annotations

import math
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments
from .gradients import contiguous_rows, derivative
from .reference import Steps
from .scan import has_kernel, ssd_scan, ssd_summary

TENSORS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_state")
_LEAST = 2.0**-60  # a smaller δ decays nothing in fp32, and what is divided by it would not be finite
_LOWEST = -800.0  # of a logarithm; its exponential is 0


def part_gradients(x: Any, out_gradient: Tensor, state_gradient: Tensor | None, wanted: Collection[str] = TENSORS) -> Arguments:
    """By ssd_scan_backward, or by autograd where it has no kernel. state_gradient: None for zeros."""
    if has_kernel(x.x, x.B):
        return derivative(x, SimpleNamespace(**{name: name in wanted for name in TENSORS}), out_gradient, state_gradient)
    given = {name: getattr(x, name) for name in TENSORS}
    leaves = {name: given[name].detach().requires_grad_() for name in wanted if given[name] is not None}
    with torch.enable_grad():
        out, last = ssd_scan(
            **given | leaves,
            cu_seqlens=x.cu_seqlens,
            dt_softplus=x.dt_softplus,
            dt_limit=(x.dt_lowest, x.dt_highest),
            return_last_state=True,
        )
    pairs = [(out, out_gradient)] + ([] if state_gradient is None else [(last, state_gradient)])
    results, grads = zip(*pairs, strict=True)
    return dict(zip(leaves, torch.autograd.grad(results, list(leaves.values()), grads), strict=True))


def state_gradient_before(x: Any, out_gradient: Tensor, state_gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    """(gradient of the state before the tokens, decay over them (B, H)), without cu_seqlens. From the last token to the first
    this gradient is a state too:

        E ← exp(δ_t A) E + exp(δ_t A) dY_t C_tᵀ        dY = dout · silu(z)

    so `ssd_summary` computes it, with dY exp(δA) / δ in the place of x and C in that of B."""
    wide = state_dtype(x.x)
    bias = None if x.dt_bias is None else x.dt_bias.to(wide)
    delta, A = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(x.dt.to(wide), bias), x.A.to(wide)
    if x.x.dtype == torch.float16:  # whose range is too small for the quotient
        zeros = out_gradient.new_zeros((*x.x.shape[:1], *x.x.shape[2:], x.B.shape[-1]), dtype=wide)
        state = SimpleNamespace(**vars(x) | {"initial_state": zeros})
        found = part_gradients(state, out_gradient, state_gradient, ("initial_state",))
        decay = (delta.double() * A.double()).clamp(min=_LOWEST).sum(1).exp()
        return found["initial_state"], decay.to(wide)
    slope = contiguous_rows(out_gradient)
    if x.z is not None:
        z = x.z.to(wide)
        slope = slope * (z * z.sigmoid())
    delta = torch.where(delta.abs() < _LEAST, _LEAST, delta).clamp(max=torch.finfo(wide).max)
    decay = (delta * A).exp()
    slope = (slope * torch.where(decay == 0, 0, decay / delta)[..., None]).to(x.x.dtype)
    after = None if state_gradient is None else state_gradient.contiguous()
    before, decay = ssd_summary(*(slope.flip(1), delta.flip(1), A, x.C.flip(1), None, after), dt_limit=(-math.inf, math.inf))
    return before, decay
