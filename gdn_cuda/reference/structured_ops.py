"""The structured operators on CPU tensors: what the public functions mean, in the dtype they promise.

Shapes and dtypes were checked by the C++ operators. Sums are those of the oracles: formed in fp64 and rounded once; so many
points at a time that what is formed stays within `BYTES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from . import structured_vandermonde as vandermonde
from .structured_cauchy import cauchy_conj, cauchy_gradients, cauchy_kernel
from .structured_common import broadcast_shapes

BYTES = 1 << 26


def _slices(length: int, *others: Tensor) -> Iterator[slice]:
    """Of `length` points, each beside every other number in the widest precision; one empty slice for none."""
    leading = broadcast_shapes(*(x.shape[:-1] for x in others))
    numbers = math.prod(leading) * max(x.shape[-1] for x in others)
    step = max(BYTES // (16 * max(numbers, 1)), 1)
    return (slice(first, min(first + step, length)) for first in range(0, max(length, 1), step))


def cauchy(v: Tensor, points: Tensor, poles: Tensor, conj: bool) -> Tensor:
    """(…,L) in v's dtype."""
    function = cauchy_conj if conj else cauchy_kernel
    some = _slices(points.shape[-1], v, poles, points[..., :1])
    return torch.cat([function(v, points[..., part], poles).to(v.dtype) for part in some], -1)


def cauchy_backward(
    grad: Tensor, v: Tensor, points: Tensor, poles: Tensor, conj: bool, of_v: bool, of_points: bool, of_poles: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in grad's leading dimensions; an empty tensor in place of one that nobody asked for."""
    by_points, total_v, total_poles = [], None, None
    for part in _slices(points.shape[-1], v, poles, grad[..., :1]):
        for_v, for_points, for_poles = cauchy_gradients(grad[..., part], v, points[..., part], poles, conj)
        by_points.append(for_points)
        total_v = for_v if total_v is None else total_v + for_v
        total_poles = for_poles if total_poles is None else total_poles + for_poles
    wanted = ((total_v, of_v), (torch.cat(by_points, -1), of_points), (total_poles, of_poles))
    return tuple(x.to(v.dtype) if want and x is not None else v.new_empty(0) for x, want in wanted)


def log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    """(…,L), real, of v's precision."""
    wide_v, wide_x = v.to(torch.complex128), x.to(torch.complex128)
    parts = []
    for part in _slices(L, v, x):
        powers = vandermonde.powers("log_vandermonde", wide_x, part.stop - part.start, part.start)
        parts.append(2 * (wide_v[..., :, None] * powers).real.sum(-2))
    return torch.cat(parts, -1).to(v.real.dtype)


def log_vandermonde_moments(u: Tensor, x: Tensor, orders: int) -> Tensor:
    """Σ_l l^j u_l e^{x_n l} for j below orders, (orders,…,N) in x's dtype."""
    wide_u, wide_x = u.to(torch.float64), x.to(torch.complex128)
    sums: list[Tensor | None] = [None] * orders
    for part in _slices(u.shape[-1], x, u[..., :1]):
        steps = torch.arange(part.start, part.stop, dtype=torch.float64, device=u.device)
        terms = wide_u[..., None, part] * vandermonde.powers(
            "log_vandermonde_transpose", wide_x, part.stop - part.start, part.start
        )
        for j, before in enumerate(sums):
            new = (steps**j * terms).sum(-1)
            sums[j] = new if before is None else before + new
    return torch.stack([total for total in sums if total is not None]).to(x.dtype)
