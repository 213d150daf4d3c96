"""S4 step by step and block by block, from its discretized system."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..structured.reference_s4 import Discrete, System


class LinearStep(NamedTuple):
    """Coefficients of a step in O(rank · N), on one half of each conjugate pair.

    w = E s − P (Pᴴ s) + 2 B u, s ← D w − D P G (Pᴴ D w): D = 1/(2/dt − A), E = 2/dt + A, G = (I + Pᴴ D P)⁻¹. Products with Pᴴ
    sum over whole pairs, so they are twice the real part of sums over halves.
    """

    D: Tensor  # (H,N)
    E: Tensor
    P: Tensor  # (rank,H,N)
    G: Tensor  # (H,rank,rank), real
    B: Tensor  # (H,N)

    def to(self, dtype: torch.dtype) -> LinearStep:
        real = torch.float64 if dtype == torch.complex128 else torch.float32
        return LinearStep(*(x.to(dtype if x.is_complex() else real) for x in self))

    def advance(self, u: Tensor, state: Tensor) -> Tensor:
        w = self.E * state - self._spread(self._projected(state)) + 2 * self.B * u[..., None]
        w = self.D * w
        inner = torch.einsum("hrs,...hs->...hr", self.G, self._projected(w))
        return w - self.D * self._spread(inner)

    def _projected(self, x: Tensor) -> Tensor:
        return 2 * torch.einsum("rhn,...hn->...hr", self.P.conj(), x).real

    def _spread(self, coefficients: Tensor) -> Tensor:
        return torch.einsum("rhn,...hr->...hn", self.P, coefficients.to(self.P.dtype))


def linear_step(system: System) -> LinearStep:
    P = system.P
    D = 1 / (2 / system.dt - system.A)
    inner = torch.eye(P.shape[0], dtype=D.real.dtype, device=D.device)
    inner = inner + 2 * torch.einsum("rhn,hn,shn->hrs", P.conj(), D, P).real
    return LinearStep(D, 2 / system.dt + system.A, P, torch.linalg.inv(inner), system.B[0])


def forward_state(discrete: Discrete, u: Tensor, state: Tensor) -> Tensor:
    """Ā^L s + Σ_l Ā^{L−1−l} B̄ u_l for u (…,H,L) and s (…,H,M), in blocks of about √L steps, with two products each."""
    L = u.shape[-1]
    block = 1 << (max(L, 1).bit_length() // 2)
    power, reach = discrete.A, discrete.B[..., None]  # Ā^n, and Ā^{n−1} B̄ … B̄
    while reach.shape[-1] < block:
        reach = torch.cat([power @ reach, reach], -1)
        power = power @ power
    u = u.to(discrete.A.dtype)
    rest = L % block
    if rest:
        state = _advanced(torch.linalg.matrix_power(discrete.A, rest), state)
        state = state + torch.einsum("hml,...hl->...hm", reach[..., block - rest :], u[..., :rest])
    for first in range(rest, L, block):
        state = _advanced(power, state) + torch.einsum("hml,...hl->...hm", reach, u[..., first : first + block])
    return state


def _advanced(A: Tensor, state: Tensor) -> Tensor:
    return torch.einsum("hmn,...hn->...hm", A, state)
