"""The S4 kernel (DPLR) in fp64: the literal recurrence of the dense system, and the closed form through its resolvent.

The system of one feature h, in conjugate pairs (n runs over half of them, so vectors are [x, x̄] of length 2N):

    x' = Δ (Λ − P Pᴴ) x + Δ B u,   y = Re(C x),   Λ = diag(A),   Δ = diag(dt)

discretized bilinearly: Ā = (I − M/2)⁻¹ (I + M/2) and B̄ = (I − M/2)⁻¹ Δ B with M = Δ (Λ − P Pᴴ). The kernel is
k_l = Re(C Ā^l B̄), and a state s adds Re(C Ā^{l+1} s) to the output at l. Shapes: dt (H,1) or (H,N), A (H,N), B (1,H,N),
C (channels,H,N), P (rank,H,N). Everything is differentiable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators.dtypes import from_pairs
from ..operators.schema import refuse
from .reference_common import roots_of_unity

STEP_MODES = ("dense", "linear", "diagonal")
TRANSFORMS = ("none", "exp", "relu", "sigmoid", "softplus")


class System(NamedTuple):
    """The continuous system: a row per feature, half of each conjugate pair."""

    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    P: Tensor


class Discrete(NamedTuple):
    """Ā (H,2N,2N) and B̄ (H,2N)."""

    A: Tensor
    B: Tensor


def transformed(parameter: Tensor, name: str) -> Tensor:
    if name not in TRANSFORMS:
        refuse("param_config", "transform", f"one of {TRANSFORMS}", repr(name))
    if name == "softplus":  # torch's has errors up to 2e-9 above 20
        return torch.logaddexp(parameter, torch.zeros_like(parameter))
    return parameter if name == "none" else getattr(torch, name)(parameter)


def _complex(parameter: Tensor, rank: int) -> Tensor:
    """A complex (…,N) from (…,N,2), or from a real (…,N) of one dimension less."""
    return from_pairs(parameter.double()) if parameter.dim() > rank else parameter.double().to(torch.complex128)


def system_of(param_config: Mapping[str, Any], rate: float = 1.0) -> System:
    """A = −tr(A_real) − i·tr(A_imag) and dt = tr(inv_dt) · rate (with dt_fast tr(sinh(inv_dt))).

    Feature h has system h mod n_ssm, as in S4. A real system (is_real) has no imaginary part and counts twice, like any other
    pair.
    """
    x = param_config
    A = torch.complex(
        -transformed(x["A_real"].double(), x["real_transform"]),
        torch.zeros_like(x["A_real"], dtype=torch.float64)
        if x["is_real"]
        else -transformed(x["A_imag"].double(), x["imag_transform"]),
    )
    inv_dt = x["inv_dt"].double()
    dt = transformed(inv_dt.sinh() if x["dt_fast"] else inv_dt, x["dt_transform"]) * rate
    P = A.new_zeros(0, *A.shape) if x.get("P") is None else _complex(x["P"], 3)
    A, B, P = (torch.cat([part] * x["repeat"], -2) for part in (A, _complex(x["B"], 3), P))
    return System(dt, A, B, _complex(x["C"], 3), P)


def with_conjugates(x: Tensor) -> Tensor:
    """[x, x̄] on the last dimension."""
    return torch.cat([x, x.conj()], -1)


def _twice(dt: Tensor) -> Tensor:
    """dt for 2N states; (…,1) is unchanged."""
    return dt if dt.shape[-1] == 1 else torch.cat([dt, dt], -1)


def dense_generator(system: System) -> Tensor:
    """Λ − P Pᴴ (H,2N,2N)."""
    P = with_conjugates(system.P)
    return torch.diag_embed(with_conjugates(system.A)) - torch.einsum("rhm,rhn->hmn", P, P.conj())


def discretized(system: System) -> Discrete:
    half = 0.5 * _twice(system.dt)[..., None] * dense_generator(system)
    identity = torch.eye(half.shape[-1], dtype=half.dtype, device=half.device)
    forced = (_twice(system.dt) * with_conjugates(system.B[0]))[..., None]
    solved = torch.linalg.solve(identity - half, torch.cat([identity + half, forced], -1))
    return Discrete(solved[..., :-1], solved[..., -1])


def kernel_by_recurrence(discrete: Discrete, C: Tensor, L: int, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """k (channels,H,L) and, for a state (B,H,2N) or (B,H,N), k_state (B,channels,H,L)."""
    start = discrete.B[None]
    if state is not None:
        start = torch.cat([_advanced(discrete, full_state(state, C.shape[-1])), start])
    outputs = []
    for _ in range(L):
        outputs.append(torch.einsum("chn,bhn->bch", with_conjugates(C), start).real)
        start = _advanced(discrete, start)
    k = torch.stack(outputs, -1) if outputs else start.real.new_zeros(start.shape[0], C.shape[0], C.shape[1], 0)
    return k[-1], None if state is None else k[:-1]


def full_state(state: Tensor, N: int) -> Tensor:
    return with_conjugates(state) if state.shape[-1] == N else state


def _advanced(discrete: Discrete, state: Tensor) -> Tensor:
    return torch.einsum("hmn,...hn->...hm", discrete.A, state)


# The closed form needs C̃ = C (I − Ā^L), for which Σ_{l<L} C Ā^l B̄ e^{−2πi kl/L} = C̃ (I − e^{−2πi k/L} Ā)⁻¹ B̄.


def truncated_output(discrete: Discrete, C: Tensor, length: int) -> Tensor:
    """C̃ for a kernel of `length`."""
    return C - _times_power(discrete, C, length)


def doubled_output(discrete: Discrete, C_tilde: Tensor, length: int) -> Tensor:
    """C̃ for 2·length from that for length: C (I − Ā^{2L}) = C̃ (I + Ā^L)."""
    return C_tilde + _times_power(discrete, C_tilde, length)


def original_output(discrete: Discrete, C_tilde: Tensor, length: int) -> Tensor:
    """C from C̃; torch's LinAlgError if an eigenvalue of Ā is a root of unity of that order. Length 0: C̃ is C."""
    if length == 0:
        return C_tilde
    power = torch.linalg.matrix_power(discrete.A, length)
    identity = torch.eye(power.shape[-1], dtype=power.dtype, device=power.device)
    columns = with_conjugates(C_tilde).permute(1, 2, 0)
    return torch.linalg.solve((identity - power).mT, columns).permute(2, 0, 1)[..., : C_tilde.shape[-1]]


def _times_power(discrete: Discrete, C: Tensor, length: int) -> Tensor:
    power = torch.linalg.matrix_power(discrete.A, length)
    return torch.einsum("chm,hmn->chn", with_conjugates(C), power)[..., : C.shape[-1]]


def kernel_by_resolvent(
    system: System, length: int, L: int | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The result of `kernel_by_recurrence` for a system whose C is the C̃ of `length`; its first L steps (default: all).

    k̂(ω) = 2/(1+ω) · [r₀₀ − r₀₁ (I + r₁₁)⁻¹ r₁₀] with r = cauchy_conj([B;P] × [C̃;P̄] · dt, z, A·dt), z = 2(1−ω)/(1+ω). Here
    every r is (1+ω)/2 · Σ v / ((1−ω) − (1+ω)/2 · A dt), which is equal and finite at ω = −1, where z is infinite.
    """
    if not 0 <= (length if L is None else L) <= length:
        refuse("kernel_by_resolvent", "L", f"0 … length={length}", L)
    B = system.B if state is None else torch.cat([_undiscretized(system, state), system.B])
    if length == 0:
        k = system.A.real.new_zeros(B.shape[0], *system.C.shape[:2], 0)
        return k[-1], None if state is None else k[:-1]
    omega = roots_of_unity(torch.arange(length // 2 + 1, device=system.A.device), length)
    weight = (1 + omega) / 2
    v = torch.cat([B, system.P])[:, None] * torch.cat([system.C, system.P.conj()]) * system.dt
    poles = with_conjugates(system.A * system.dt)
    denominators = (1 - omega)[:, None] - weight[:, None] * poles[..., None, :]
    g = (with_conjugates(v)[..., None, :] / denominators).sum(-1).movedim((0, 1), (-2, -1))  # (H,frequency,B+R,C+R)
    rank = system.P.shape[0]
    inputs, outputs = g.shape[-2] - rank, g.shape[-1] - rank
    weight = weight[:, None, None]
    inner = torch.eye(rank, dtype=g.dtype, device=g.device) + weight * g[..., inputs:, outputs:]
    correction = g[..., :inputs, outputs:] @ torch.linalg.solve(inner, g[..., inputs:, :outputs])
    transform = (g[..., :inputs, :outputs] - weight * correction).movedim((-2, -1), (0, 1))
    k = torch.fft.irfft(transform, n=length)[..., :L]
    return k[-1], None if state is None else k[:-1]


def _undiscretized(system: System, state: Tensor) -> Tensor:
    """The B (…,H,N) whose discretization is Ā s: Δ⁻¹ s + (Λ − P Pᴴ) s / 2."""
    N = system.A.shape[-1]
    full = full_state(state, N)
    return (full / _twice(system.dt) + 0.5 * torch.einsum("hmn,bhn->bhm", dense_generator(system), full))[..., :N]


# Stepping: u (…,H), the original C; y is (…,channels,H).


def step_dense(discrete: Discrete, C: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """s ← Ā s + B̄ u, y = Re(C s); state (…,H,2N)."""
    state = _advanced(discrete, state) + discrete.B * u[..., None]
    return torch.einsum("chn,...hn->...ch", with_conjugates(C), state).real, state


def step_linear(system: System, C: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The same in O(rank · N) on half of each pair, state (…,H,N):

    w = (2/dt + A) s − P (Pᴴ s) + 2 B u, s ← D w − D P (I + Pᴴ D P)⁻¹ Pᴴ D w with D = 1 / (2/dt − A), y = 2 Re(C s),
    where products with Pᴴ sum over whole pairs, so they are twice the real part of sums over halves.
    """
    P = system.P
    D = 1 / (2 / system.dt - system.A)

    def projected(x: Tensor) -> Tensor:
        return 2 * torch.einsum("rhn,...hn->...hr", P.conj(), x).real

    def spread(coefficients: Tensor) -> Tensor:
        return torch.einsum("rhn,...hr->...hn", P, coefficients.to(P.dtype))

    w = (2 / system.dt + system.A) * state - spread(projected(state)) + 2 * system.B[0] * u[..., None]
    identity = torch.eye(P.shape[0], dtype=torch.float64, device=P.device)
    inner = identity + 2 * torch.einsum("rhn,hn,shn->hrs", P.conj(), D, P).real
    state = D * (w - spread(torch.linalg.solve(inner, projected(D * w)[..., None]).squeeze(-1)))
    return 2 * torch.einsum("chn,...hn->...ch", C, state).real, state


def diagonalized(discrete: Discrete, C: Tensor) -> tuple[Discrete, Tensor]:
    """(eigenvalues (H,2N) and V⁻¹ B̄, C V (channels,H,2N)) for `step_diagonal`: states are V⁻¹ s there."""
    eigenvalues, V = torch.linalg.eig(discrete.A)
    start = torch.linalg.solve(V, discrete.B[..., None]).squeeze(-1)
    return Discrete(eigenvalues, start), torch.einsum("chm,hmn->chn", with_conjugates(C), V)


def step_diagonal(discrete: Discrete, C: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """A step with the results of `diagonalized`; state (…,H,2N) in the eigenbasis."""
    state = discrete.A * state + discrete.B * u[..., None]
    return torch.einsum("chn,...hn->...ch", C, state).real, state


def forward_state(discrete: Discrete, u: Tensor, state: Tensor) -> Tensor:
    """The state after u (…,H,L), step by step; (…,H,2N), or (…,H,N) if `state` has that shape."""
    N = discrete.B.shape[-1] // 2
    half = state.shape[-1] == N
    state = full_state(state, N)
    for t in range(u.shape[-1]):
        state = _advanced(discrete, state) + discrete.B * u[..., t, None]
    return state[..., :N] if half else state
