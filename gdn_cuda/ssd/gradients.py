"""torch.ops.gdn_cuda.ssd_scan_backward, and the gradients of ssd_scan by it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..operators import Differentiable
from ..operators.dtypes import state_dtype
from ..operators.examples import Arguments
from ..operators.first_order import first_order
from ..operators.gradients import DIFFERENTIABLE
from .mapped import with_more_heads
from .reference import CHUNK, Scan, Steps, gradients
from .spans import sequences_of, spans_of


def _chunks(x: Any) -> Any:
    batch, tokens = x.x.shape[:2]
    return batch * ((tokens + CHUNK - 1) // CHUNK) if x.cu_seqlens is None else tokens // CHUNK + sequences_of(x)


def _gradient_shapes(x: Any) -> tuple[Tensor, ...]:
    (heads, channels), wide = x.x.shape[2:], state_dtype(x.x)
    ddt, sums = (x.x.new_empty(sizes, dtype=wide) for sizes in (x.dt.shape, (3, _chunks(x), heads)))
    first = x.x.new_empty((sequences_of(x), heads, channels, x.B.shape[-1]), dtype=wide)
    return x.x.new_empty(x.x.shape), ddt, x.B.new_empty(x.B.shape), x.C.new_empty(x.C.shape), sums, first


def _gradients(x: Any) -> tuple[Tensor, ...]:
    """A, dt_bias and D have their whole sums in the first chunk."""
    found = tuple(torch.zeros_like(each) for each in _gradient_shapes(x))
    dx, ddt, dB, dC, sums, first = found
    if x.state_gradient is not None:
        first.copy_(x.state_gradient)
    scan, steps = Scan(x.x, x.dt, x.A, x.B, x.C, x.D, None, x.dt_bias, None), Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))
    for span in spans_of(x):
        at = slice(span.row, span.row + 1), slice(span.first, span.end)
        initial = None if x.initial_state is None or span.state is None else x.initial_state[span.state : span.state + 1]
        after = None if x.state_gradient is None or span.last is None else x.state_gradient[span.last : span.last + 1]
        part = scan._replace(x=x.x[at], dt=x.dt[at], B=x.B[at], C=x.C[at])
        zeros = x.x.new_zeros((1, *first.shape[1:])) if initial is None else initial
        one = gradients(part._replace(initial_state=zeros), steps, x.out_gradient[at], after)
        for to, of in ((dx, one.x), (ddt, one.dt), (dB, one.B), (dC, one.C)):
            to[at] = of.to(to.dtype)
        for n, of in enumerate((one.A, one.dt_bias, one.D)):
            if of is not None and sums.shape[1]:
                sums[n, 0] += of
        if span.state is not None and one.initial_state is not None:
            first[span.state] = one.initial_state[0].to(first.dtype)
        elif span.first == 0:
            first[span.row] = 0
    return found


ssd_scan_backward_operator: Differentiable = first_order(
    "ssd_scan",
    "ssd_scan_backward",
    shapes=_gradient_shapes,
    cpu=_gradients,
    batched=lambda x, dims: with_more_heads(ssd_scan_backward_operator, (2, 2, 2, 2, 2, 1), x, dims),
)


def contiguous_rows(gradient: Tensor) -> Tensor:
    """Autograd hands over gradients of any strides: 0 after a sum."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def derivative(x: Any, needs: Any, out_gradient: Tensor, state_gradient: Tensor | None) -> Arguments:
    """By ssd_scan_backward, which knows no z, no D of channels and no has_initial_state. state_gradient: None for zeros."""
    out_gradient = contiguous_rows(out_gradient)
    state_gradient = None if state_gradient is None else state_gradient.contiguous()
    same = (
        "x",
        "dt",
        "A",
        "B",
        "C",
        "dt_bias",
        "cu_seqlens",
        "seq_idx",
        "dt_softplus",
        "dt_lowest",
        "dt_highest",
        "deterministic",
    )
    given: Arguments = {name: getattr(x, name) for name in same}
    found: Arguments = {}
    initial, slope, wide = x.initial_state, out_gradient, state_dtype(x.x)
    if x.z is not None:
        z, grad = x.z.to(wide), out_gradient.to(wide)
        sigmoid = z.sigmoid()
        slope = (grad * (z * sigmoid)).to(x.x.dtype)
        if needs.z:
            ungated = given | {"z": None, "D": x.D, "initial_state": initial, "has_initial_state": x.has_initial_state}
            forward = DIFFERENTIABLE["ssd_scan"]
            y, _ = forward(*(ungated[name] for name in forward.schema.arguments))
            found["z"] = grad * y * sigmoid * (1 + z * (1 - sigmoid))
    masked = None if initial is None else x.has_initial_state
    if masked is not None:
        initial = torch.where(masked[:, None, None, None], initial, 0)
    D_by_channel = x.D is not None and x.D.dim() == 2
    given |= {"D": None if D_by_channel else x.D, "initial_state": initial}
    given |= {"out_gradient": slope, "state_gradient": state_gradient}
    backward = ssd_scan_backward_operator
    dx, ddt, dB, dC, sums, first = backward(*(given[name] for name in backward.schema.arguments))
    dA, dbias, dD = sums.sum(1)
    if D_by_channel:
        dx = dx + x.D * slope
        dD = (slope.to(wide) * x.x).sum((0, 1)) if needs.D else dD
    if masked is not None:
        first = torch.where(masked[:, None, None, None], first, 0)
    found |= {"x": dx, "dt": ddt, "A": dA, "B": dB, "C": dC, "D": dD, "dt_bias": dbias, "initial_state": first}
    return {
        name: grad.to(getattr(x, name).dtype) if getattr(needs, name) and getattr(x, name) is not None else None
        for name, grad in found.items()
    }


def ssd_scan_backward(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    out_gradient: Tensor,
    *,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **given: Any,
) -> tuple[Tensor, ...]:
    """The gradients of x, dt, B and C, those of A, dt_bias and D in parts for each chunk, (3, chunks, H), and the initial
    state's. given: D (H,), dt_bias, initial_state, cu_seqlens, seq_idx, state_gradient and dt_softplus."""
    optional = ("D", "dt_bias", "initial_state", "cu_seqlens", "seq_idx", "state_gradient")
    every: Arguments = dict.fromkeys(optional) | {"dt_softplus": False, "deterministic": False}
    every |= {"x": x, "dt": dt, "A": A, "B": B, "C": C, "out_gradient": out_gradient}
    every |= given | {"dt_lowest": dt_limit[0], "dt_highest": dt_limit[1]}
    found: tuple[Tensor, ...] = ssd_scan_backward_operator(
        *(every[name] for name in ssd_scan_backward_operator.schema.arguments)
    )
    return found
