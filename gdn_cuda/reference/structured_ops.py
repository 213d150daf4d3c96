"""The structured operators on CPU tensors: what the public functions mean, in the dtype they promise.

Shapes and dtypes were checked by the C++ operators. Sums are those of the oracles: formed in fp64 and rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import structured_vandermonde as vandermonde
from .structured_cauchy import cauchy_conj, cauchy_gradients, cauchy_kernel


def cauchy(v: Tensor, points: Tensor, poles: Tensor, conj: bool) -> Tensor:
    """(…,L) in v's dtype."""
    return (cauchy_conj if conj else cauchy_kernel)(v, points, poles).to(v.dtype)


def cauchy_backward(
    grad: Tensor, v: Tensor, points: Tensor, poles: Tensor, conj: bool, of_v: bool, of_points: bool, of_poles: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in grad's leading dimensions; an empty tensor in place of one that nobody asked for."""
    found = cauchy_gradients(grad, v, points, poles, conj)
    wanted = zip(found, (of_v, of_points, of_poles), strict=True)
    return tuple(x.to(v.dtype) if want else v.new_empty(0) for x, want in wanted)


def log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    """(…,L), real, of v's precision."""
    return vandermonde.log_vandermonde(v, x, L).to(v.real.dtype)


def log_vandermonde_moments(u: Tensor, x: Tensor, orders: int) -> Tensor:
    """Σ_l l^j u_l e^{x_n l} for j below orders, (orders,…,N) in x's dtype."""
    steps = torch.arange(u.shape[-1], dtype=torch.float64, device=u.device)
    powers = vandermonde.powers("log_vandermonde_transpose", x.to(torch.complex128), u.shape[-1])
    wide = u.to(torch.float64)[..., None, :]
    return torch.stack([(wide * steps**j * powers).sum(-1) for j in range(orders)]).to(x.dtype)
