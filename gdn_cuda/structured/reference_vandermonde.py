"""Sums over powers e^{x_n l} in fp64, each power computed separately. Differentiable in every tensor, real and complex.

At a phase of 1e6 rad the product x·l, rounded to fp64, has an error of 6e-11 rad. Here the rounding error is computed exactly
and added back, so the error of 1e-16 comes only from cos and sin, which reduce their argument exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.schema import refuse
from .reference_common import check_last, product_error, widened


def log_vandermonde(v: Tensor, x: Tensor, L: int) -> Tensor:
    """2·Re Σ_n v_n e^{x_n l}, real (…,L), l = 0 … L−1; v and x (…,N)."""
    v, x = widened("log_vandermonde", v=v, x=x)
    check_last("log_vandermonde", "x", x, v.shape[-1], "v")
    terms = v[..., :, None] * powers("log_vandermonde", x, L)
    return 2 * (terms.real if terms.is_complex() else terms).sum(-2)


def log_vandermonde_transpose(u: Tensor, v: Tensor, x: Tensor, L: int) -> Tensor:
    """v_n Σ_l u_l e^{x_n l}, (…,N); u (…,L), v and x (…,N); always complex."""
    u, v, x = (t.to(torch.complex128) for t in widened("log_vandermonde_transpose", u=u, v=v, x=x))
    check_last("log_vandermonde_transpose", "x", x, v.shape[-1], "v")
    if u.dim() < 1 or u.shape[-1] != L:
        refuse("log_vandermonde_transpose", "u", f"(…, L={L})", tuple(u.shape))
    return v * (u[..., None, :] * powers("log_vandermonde_transpose", x, L)).sum(-1)


def powers(function: str, x: Tensor, L: int, first: int = 0) -> Tensor:
    """e^{x l} (…,N,L), l from `first` on. At l = 0 the power is 1, after it e^{−∞ l} is 0: −∞ is the logarithm of 0."""
    if L < 0:
        refuse(function, "L", ">= 0", L)
    steps = torch.arange(first, first + L, dtype=torch.float64, device=x.device)

    def times_steps(part: Tensor) -> tuple[Tensor, Tensor]:
        part = part[..., :, None]
        return torch.where(steps == 0, 0.0, part * steps), product_error(part, steps)

    if not x.is_complex():
        exponent, lost = times_steps(x)
        return exponent.exp() * lost.exp()
    (exponent, lost), (phase, lost_phase) = times_steps(x.real), times_steps(x.imag)
    size = exponent.exp()
    return torch.complex(size * phase.cos(), size * phase.sin()) * torch.complex(lost, lost_phase).exp()
