"""A Mamba-2 layer from its first projection to its norm: the short convolution of x, B and C, and the scan. Its backward
computes the convolution again, so that a graph keeps the projection alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..conv.causal_conv1d import causal_conv1d
from ..operators.autograd import needs_gradients
from ..operators.gradients import under_transforms
from ..ssd import ssd_scan
from ..ssd.gradients import derivative
from ..ssd.scan import has_kernel


class Heads(NamedTuple):
    """What the channels of the convolution are: x (heads, channels), B and C (groups, states)."""

    heads: int
    channels: int
    groups: int
    states: int

    def split(self, xBC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of (…, heads · channels + 2 · groups · states)."""
        columns = self.groups * self.states
        x, B, C = xBC.split([self.heads * self.channels, columns, columns], -1)
        by_group = self.groups, self.states
        return x.unflatten(-1, (self.heads, self.channels)), B.unflatten(-1, by_group), C.unflatten(-1, by_group)


class Options(NamedTuple):
    heads: Heads
    activation: str | None
    dt_limit: tuple[float, float]
    dt_softplus: bool = True
    seq_idx: Tensor | None = None
    cu_seqlens: Tensor | None = None


def conv_scan(
    options: Options,
    xBC: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dt: Tensor,
    A: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out (B, T, H, P), last state) for xBC (B, T, …), z (B, T, H, P) and weight (channels, W)."""
    given = (xBC, weight, bias, dt, A, D, z, dt_bias, initial_state)
    # Compiled code decides by itself what it computes again.
    if torch.compiler.is_compiling() or under_transforms() or not needs_gradients(*given):
        return _forward(options, *given)
    x, B, _ = options.heads.split(xBC)
    if not has_kernel(x, B):
        return _forward(options, *given)
    out, last = _ConvScan.apply(options, *given)
    return out, last


def _convolved(options: Options, xBC: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows: Tensor = causal_conv1d(
        xBC.mT, weight, bias, options.seq_idx, activation=options.activation, cu_seqlens=options.cu_seqlens
    ).mT
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _forward(
    options: Options,
    xBC: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dt: Tensor,
    A: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    x, B, C = options.heads.split(_convolved(options, xBC, weight, bias))
    found: tuple[Tensor, Tensor] = ssd_scan(
        *(x, dt, A, B, C, D, z, dt_bias, initial_state, options.cu_seqlens),
        dt_softplus=options.dt_softplus,
        dt_limit=options.dt_limit,
        seq_idx=options.seq_idx,
        return_last_state=True,
    )
    return found


class _ConvScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, options: Options, *given: Any) -> tuple[Tensor, Tensor]:
        ctx.options = options._replace(seq_idx=None, cu_seqlens=None)
        ctx.save_for_backward(options.seq_idx, options.cu_seqlens, *given)
        return _forward(options, *given)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient: Tensor, state_gradient: Tensor) -> tuple[Any, ...]:
        seq_idx, cu_seqlens, xBC, weight, bias, dt, A, D, z, dt_bias, initial_state = ctx.saved_tensors
        options = ctx.options._replace(seq_idx=seq_idx, cu_seqlens=cu_seqlens)
        taps = [None if t is None else t.detach().requires_grad_() for t in (xBC, weight, bias)]
        with torch.enable_grad():
            convolved = _convolved(options, *taps)
        x, B, C = options.heads.split(convolved.detach())
        _, needs_xBC, needs_weight, needs_bias, *rest = ctx.needs_input_grad
        needs_taps = needs_xBC or needs_weight or needs_bias
        needs = dict(zip(("dt", "A", "D", "z", "dt_bias", "initial_state"), rest, strict=True))
        scan = {"x": x, "B": B, "C": C, "dt": dt, "A": A, "D": D, "z": z, "dt_bias": dt_bias, "initial_state": initial_state}
        scan |= {"has_initial_state": None, "seq_idx": seq_idx, "cu_seqlens": cu_seqlens, "deterministic": False}
        lowest, highest = options.dt_limit
        scan |= {"dt_softplus": options.dt_softplus, "dt_lowest": float(lowest), "dt_highest": float(highest)}
        found = derivative(
            SimpleNamespace(**scan),
            SimpleNamespace(x=needs_taps, B=needs_taps, C=needs_taps, **needs),
            out_gradient,
            state_gradient,
        )
        gradients: list[Tensor | None] = [None] * 3
        wanted = [i for i, each in enumerate((needs_xBC, needs_weight, needs_bias)) if each]
        if wanted:
            joined = torch.cat([found[name].flatten(2) for name in ("x", "B", "C")], -1)
            for i, gradient in zip(wanted, torch.autograd.grad(convolved, [taps[i] for i in wanted], joined), strict=True):
                gradients[i] = gradient
        return (None, *gradients, *(found.get(name) for name in needs))
