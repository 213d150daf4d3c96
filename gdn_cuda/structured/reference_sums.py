"""Sums on CPU tensors, in the dtypes of the public functions. The arguments of an operator are attributes of x.

Shapes and dtypes were checked by the C++ operators. Sums are those of the oracles, computed in fp64 and rounded once,
with slices of points so that temporaries stay within `BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import reference_vandermonde as vandermonde
from .reference_cauchy import cauchy_conj, cauchy_gradients, cauchy_kernel
from .reference_common import broadcast_shapes

BYTES = 1 << 26


def _slices(length: int, *others: Tensor) -> Iterator[slice]:
    """Slices of `length` points so that all pairs with `others` fit in `BYTES`; one empty slice for no points."""
    leading = broadcast_shapes(*(x.shape[:-1] for x in others))
    rows = math.prod(leading) * max(x.shape[-1] for x in others)
    step = max(BYTES // (16 * max(rows, 1)), 1)
    return (slice(first, min(first + step, length)) for first in range(0, max(length, 1), step))


def cauchy(x: Any) -> Tensor:
    """(…,L) in v's dtype."""
    function = cauchy_conj if x.conj else cauchy_kernel
    some = _slices(x.points.shape[-1], x.v, x.poles, x.points[..., :1])
    return torch.cat([function(x.v, x.points[..., part], x.poles).to(x.v.dtype) for part in some], -1)


def cauchy_backward(x: Any) -> tuple[Tensor, ...]:
    """Gradients in grad's leading dimensions; empty tensors for gradients that are not requested."""
    by_points, total_v, total_poles = [], None, None
    for part in _slices(x.points.shape[-1], x.v, x.poles, x.grad[..., :1]):
        for_v, for_points, for_poles = cauchy_gradients(x.grad[..., part], x.v, x.points[..., part], x.poles, x.conj)
        by_points.append(for_points)
        total_v = for_v if total_v is None else total_v + for_v
        total_poles = for_poles if total_poles is None else total_poles + for_poles
    wanted = ((total_v, x.needs_dv), (torch.cat(by_points, -1), x.needs_dpoints), (total_poles, x.needs_dpoles))
    return tuple(y.to(x.v.dtype) if want and y is not None else x.v.new_empty(0) for y, want in wanted)


def log_vandermonde(x: Any) -> Tensor:
    """(…,L), real, of v's precision."""
    wide_v, wide_x = x.v.to(torch.complex128), x.x.to(torch.complex128)
    out = torch.empty(*broadcast_shapes(x.v.shape[:-1], x.x.shape[:-1]), x.L, dtype=x.v.real.dtype, device=x.v.device)
    for part in _slices(x.L, x.v, x.x):
        powers = vandermonde.powers("log_vandermonde", wide_x, part.stop - part.start, part.start)
        out[..., part] = 2 * (wide_v[..., :, None] * powers).real.sum(-2)
    return out


def log_vandermonde_moments(x: Any) -> Tensor:
    """Σ_l l^j u_l e^{x_n l} for j below orders, (orders,…,N) in x's dtype."""
    wide_u, wide_x = x.u.to(torch.float64), x.x.to(torch.complex128)
    sums: list[Tensor | None] = [None] * x.orders
    for part in _slices(x.u.shape[-1], x.x, x.u[..., :1]):
        steps = torch.arange(part.start, part.stop, dtype=torch.float64, device=x.u.device)
        powers = vandermonde.powers("log_vandermonde_transpose", wide_x, part.stop - part.start, part.start)
        terms = wide_u[..., None, part] * powers
        for j, before in enumerate(sums):
            new = (steps**j * terms).sum(-1)
            sums[j] = new if before is None else before + new
    return torch.stack([total for total in sums if total is not None]).to(x.x.dtype)
