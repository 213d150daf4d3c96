"""The S4D kernel (diagonal) in fp64: the literal recurrence, and the closed form as a Vandermonde sum.

    s ← Ā s + B̄ u,   y = 2 Re Σ_n C s;   so K_l = 2 Re Σ C B̄ Ā^l, and a state s adds 2 Re Σ C s Ā^{l+1}

    zoh: Ā = e^{dtA}, B̄ = B (e^{dtA} − 1)/A (dt B at A = 0);   bilinear: Ā = (1 + dtA/2)/(1 − dtA/2), B̄ = B dt/(1 − dtA/2)

Parameters and shapes are those of S4 (`s4.system_of`), without P.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..operators.schema import refuse
from .reference_s4 import System
from .reference_vandermonde import log_vandermonde, log_vandermonde_transpose, powers

DISCRETIZATIONS = ("zoh", "bilinear")


class Discrete(NamedTuple):
    """Ā, log Ā and B̄, each (H,N)."""

    A: Tensor
    log_A: Tensor
    B: Tensor


def discretized(system: System, disc: str) -> Discrete:
    x = system.A * system.dt
    if disc == "zoh":
        return Discrete(x.exp(), x, system.B[0] * system.dt * _expm1_over(x))
    if disc == "bilinear":
        base = (1 + x / 2) / (1 - x / 2)
        return Discrete(base, base.log(), system.B[0] * system.dt / (1 - x / 2))
    return refuse("S4DKernel", "disc", f"one of {DISCRETIZATIONS}", repr(disc))


def _expm1_over(x: Tensor) -> Tensor:
    """(e^x − 1)/x, by its series near 0, where the difference would cancel."""
    small = x.abs() < 0.5
    near, far = torch.where(small, x, 0.0), torch.where(small, 1.0, x)
    series = torch.ones_like(x)
    for k in range(16, 1, -1):  # 0.5¹⁶/17! < 1e-19
        series = 1 + near / k * series
    return torch.where(small, series, (far.exp() - 1) / far)


def _with_state(discrete: Discrete, state: Tensor | None) -> Tensor:
    """Factors of the powers of Ā, (B+1,H,N), with those of the kernel last."""
    start = discrete.B[None]
    return start if state is None else torch.cat([state * discrete.A, start])


def kernel_by_recurrence(discrete: Discrete, C: Tensor, L: int, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """K (channels,H,L) and, for a state (B,H,N), K_state (B,channels,H,L)."""
    x, outputs = _with_state(discrete, state), []
    for _ in range(L):
        outputs.append(2 * torch.einsum("chn,bhn->bch", C, x).real)
        x = discrete.A * x
    k = torch.stack(outputs, -1) if outputs else x.real.new_zeros(x.shape[0], *C.shape[:2], 0)
    return k[-1], None if state is None else k[:-1]


def kernel_by_powers(discrete: Discrete, C: Tensor, L: int, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The same through `log_vandermonde`."""
    k = log_vandermonde(_with_state(discrete, state)[:, None] * C, discrete.log_A, L)
    return k[-1], None if state is None else k[:-1]


def step(discrete: Discrete, C: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """y (…,channels,H) and the new state, from u (…,H) and state (…,H,N)."""
    state = discrete.A * state + discrete.B * u[..., None]
    return 2 * torch.einsum("chn,...hn->...ch", C, state).real, state


def forward_state(discrete: Discrete, u: Tensor, state: Tensor) -> Tensor:
    """The state after u (…,H,L): Ā^L s + Σ_l Ā^{L−1−l} B̄ u_l."""
    L = u.shape[-1]
    whole = powers("S4DKernel", discrete.log_A, L + 1)[..., L]
    return whole * state + log_vandermonde_transpose(u.flip(-1), discrete.B, discrete.log_A, L)
