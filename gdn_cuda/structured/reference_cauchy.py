"""Cauchy sums in fp64, as they are defined: every quotient is formed. Differentiable in every input, real and complex.

If a pole coincides with a point, the result is the limit of ω = λ + ε for ε ↓ 0: the residues of these poles are summed, and
each nonzero part (real, imaginary) of the sum becomes infinite with its sign. Gradients of v_n, λ_n and ω_l
with λ_n = ω_l are NaN; all others are not affected.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .reference_common import check_last, same_dtype, widened


def cauchy_kernel(v: Tensor, omega: Tensor, lambd: Tensor) -> Tensor:
    """out[…,l] = Σ_n v[…,n] / (ω[l] − λ[n]); v and λ (…,N), ω (…,L)."""
    v, omega, lambd = same_dtype(*widened("cauchy_kernel", v=v, omega=omega, lambd=lambd))
    check_last("cauchy_kernel", "lambd", lambd, v.shape[-1], "v")
    return _sum_over_poles(v, omega, lambd)


def cauchy_conj(v: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """out[…,l] = Σ_n [ v_n / (z_l − w_n) + v̄_n / (z_l − w̄_n) ]; v and w (…,N), z (…,L); always complex."""
    v, z, w = (x.to(torch.complex128) for x in widened("cauchy_conj", v=v, z=z, w=w))
    check_last("cauchy_conj", "w", w, v.shape[-1], "v")
    return _sum_over_poles(_with_conjugates(v), z, _with_conjugates(w))


def cauchy_gradients(grad: Tensor, v: Tensor, points: Tensor, poles: Tensor, conj: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs of `cauchy_kernel`, or with `conj` of `cauchy_conj`, by formulas; one dtype.

    Results have grad's leading dimensions: for a broadcast input, the caller sums over them.
    """
    wide = torch.complex128 if v.is_complex() else torch.float64
    grad, v, points, poles = (x.to(wide) for x in (grad, v, points, poles))
    if conj:
        v, poles = _with_conjugates(v), _with_conjugates(poles)
    difference = points[..., :, None] - poles[..., None, :]
    inverse = torch.where(difference == 0, torch.nan, 1 / difference)
    by_v = grad[..., :, None] * torch.conj_physical(inverse)
    by_poles = by_v * torch.conj_physical(v[..., None, :] * inverse)
    dv, dpoles = by_v.sum(-2), by_poles.sum(-2)
    if conj:
        dv, dpoles = (a + torch.conj_physical(b) for a, b in (x.chunk(2, -1) for x in (dv, dpoles)))
    return dv, -by_poles.sum(-1), dpoles


def _with_conjugates(x: Tensor) -> Tensor:
    # Not x.conj(): where torch traces operators, the conjugate mark of a tensor is lost.
    return torch.cat([x, torch.conj_physical(x)], -1)


def _sum_over_poles(v: Tensor, points: Tensor, poles: Tensor) -> Tensor:
    v, difference = v[..., None, :], points[..., :, None] - poles[..., None, :]
    coincides = difference == 0
    # The quotient 0 / 0 that `where` discards makes the gradients NaN, as intended.
    regular = torch.where(coincides, 0.0, v / difference).sum(-1)
    return _plus_quotient_by_zero(regular, torch.where(coincides, v.detach(), 0.0).sum(-1))


def _plus_quotient_by_zero(regular: Tensor, residue: Tensor) -> Tensor:
    """regular + residue / ε for ε ↓ 0, part by part: torch's complex sum makes NaN of infinities."""
    if residue.is_complex():
        parts = (_plus_quotient_by_zero(a, b) for a, b in ((regular.real, residue.real), (regular.imag, residue.imag)))
        return torch.complex(*parts)
    return regular + torch.where(residue == 0, 0.0, residue * torch.inf)
