"""Gradients of Kimi Delta Attention in plain torch, by the formulas that the kernels compute: 16 tokens at a time.

α_t (dk) is a token's decay, γ_i = Π_{s≤i} α_s, κ_j = Π_{s>j} α_s and Γ = γ_C within a chunk, D_ij = Π_{j<s≤i} α_s: all are
products, as differences of summed logarithms lose digits after a strong gate. ⊙ multiplies channels, β rows or columns. With

    N_ij = Σ_d k_id k_jd D_ijd, i > j      P_ij = scale Σ_d q_id k_jd D_ijd, i ≥ j
    X = V − (γ ⊙ K) Sᵀ      R = (I + N diag(β))⁻¹ X      V' = β R      S⁺ = S diag(Γ) + V'ᵀ (κ ⊙ K)

and E the gradient of the state after a chunk:

    dV' = Pᵀ dO + (κ ⊙ K) Eᵀ      Y = (I + diag(β) N)⁻ᵀ dV'      dV = β Y      dβ_i = Y_i·R_i
    ∂L/∂S = E diag(Γ) + (scale dO)ᵀ (γ ⊙ Q) − dVᵀ (γ ⊙ K)      dP = scale · tril(dO V'ᵀ)      U = −tril₋₁(dV V'ᵀ)
    dq_i = scale γ_i ⊙ (dO S)_i + Σ_j dP_ij k_j D_ij      dk = κ ⊙ (V' E) − γ ⊙ (dV S) + rows + columns
    rows_i = Σ_j U_ij k_j D_ij      columns_j = Σ_i (dP_ij q_i + U_ij k_i) D_ij
    dg_t = Σ_{i≥t} (q ⊙ scale γ dO S − k ⊙ γ dV S)_i + Σ_{j<t} (k ⊙ κ V' E)_j + Γ ⊙ Σ_v E ⊙ S + crossing_t
    crossing_t = Σ_{i≥t>j} (dP_ij q_i + U_ij k_i) k_j D_ij

D_ij is a factor for i times a factor for j, on two sides of a border between two halves of 8, 4, 2 or 1 tokens: both are at
most 1, and what underflows is 0. Every term of dg carries the decay across token t, so that a reset has a gradient of exactly
0, and nothing cancels. R and Y instead of V' and dV: a β of 0 divides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference as gdn

CHUNK = 16


class ChunkGradients(NamedTuple):
    """By head of value; the first two and the last two are None where they are not computed."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    beta: Tensor | None
    gate: Tensor | None
    state: Tensor


class _Level(NamedTuple):
    """Groups of 2 · half tokens: decays from the border between a group's halves to a token of the upper half, inclusive, and
    from a token of the lower half, exclusive, to the border (…,groups,half,dk)."""

    half: int
    forwards: Tensor
    backwards: Tensor

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The (lower, upper) halves (…,groups,half,d) of all tokens."""
        lower, upper = x.unflatten(-2, (-1, 2, self.half)).unbind(-3)
        return lower, upper

    def blocks(self, matrix: Tensor) -> Tensor:
        """The view (…,half,half,groups) of upper against lower tokens of a group, in a matrix of tokens."""
        groups = matrix.shape[-1] // (2 * self.half)
        split = matrix.view(*matrix.shape[:-2], groups, 2, self.half, groups, 2, self.half)
        return split.select(-5, 1).select(-2, 0).diagonal(dim1=-4, dim2=-2)

    def block(self, matrix: Tensor) -> Tensor:
        return self.blocks(matrix).movedim(-1, -3)

    def joined(self, lower: Tensor, upper: Tensor) -> Tensor:
        return torch.stack([lower, upper], -3).flatten(-4, -2)


def _levels(decay: Tensor) -> Iterator[_Level]:
    half = CHUNK // 2
    while half:
        lower, upper = decay.unflatten(-2, (-1, 2, half)).unbind(-3)
        yield _Level(half, upper.cumprod(-2), _after(lower))
        half //= 2


def _after(decay: Tensor) -> Tensor:
    """Π_{s>t} α_s."""
    later = torch.cat([decay[..., 1:, :], torch.ones_like(decay[..., :1, :])], -2)
    return later.flip(-2).cumprod(-2).flip(-2)


def _sum_from(x: Tensor) -> Tensor:
    """Σ_{i≥t} x_i."""
    return x.flip(-2).cumsum(-2).flip(-2)


def _sum_before(x: Tensor) -> Tensor:
    """Σ_{j<t} x_j. Shifted before it is summed: an inclusive sum less x would cancel."""
    return torch.cat([torch.zeros_like(x[..., :1, :]), x[..., :-1, :].cumsum(-2)], -2)


def _inverse(below: Tensor) -> Tensor:
    """(I + below)⁻¹, of a matrix below the diagonal."""
    identity = torch.eye(below.shape[-1], dtype=below.dtype, device=below.device)
    return torch.linalg.solve_triangular(below, identity.expand_as(below), upper=False, unitriangular=True)


def channel_gradients(
    rows: tuple[Tensor, ...], state: Tensor, grad_last: Tensor, *, scale: float, only_value_and_state: bool
) -> ChunkGradients:
    """Gradients of a padded batch of at least a token: queries and keys, normalised and one for each value head, values, betas,
    logarithms of decays (B,T,H,dk), and the output's gradients."""
    tokens, dtype = rows[2].shape[1], rows[2].dtype
    q, k, v, beta, gate, do = (gdn.to_chunks(x, CHUNK) for x in rows)
    decay, beta = gate.exp().to(dtype), beta[..., None]
    before, after = decay.cumprod(-2), _after(decay)
    kept = before[..., -1, :]
    k_in, k_out, q_in = before * k, after * k, scale * before * q
    levels = list(_levels(decay))

    scores = torch.diag_embed(scale * (q * k).sum(-1))
    keys = torch.zeros_like(scores)
    for level in levels:
        lower, upper = level.halves(k)
        to_border = (level.backwards * lower).mT
        level.blocks(keys).copy_(((level.forwards * upper) @ to_border).movedim(-3, -1))
        level.blocks(scores).copy_((scale * (level.forwards * level.halves(q)[1]) @ to_border).movedim(-3, -1))

    inverse_transposed = _inverse(beta * keys).mT
    later, y, state_gradients = grad_last, [], []
    for c in reversed(range(k.shape[1])):
        state_gradients.append(later)
        y.append(inverse_transposed[:, c] @ (scores[:, c].mT @ do[:, c] + k_out[:, c] @ later.mT))
        later = gdn.decayed(later, kept[:, c, :, None]) + do[:, c].mT @ q_in[:, c] - (beta[:, c] * y[-1]).mT @ k_in[:, c]
    by_error = torch.stack(y[::-1], 1)
    d_value = gdn.from_chunks(beta * by_error, tokens)
    if only_value_and_state:
        return ChunkGradients(None, None, d_value, None, None, later)
    inverse = _inverse(keys * beta.mT)
    states, errors = [], []
    for c in range(k.shape[1]):
        states.append(state)
        errors.append(inverse[:, c] @ (v[:, c] - k_in[:, c] @ state.mT))
        state = gdn.decayed(state, kept[:, c, :, None]) + (beta[:, c] * errors[-1]).mT @ k_out[:, c]

    s, e, r = torch.stack(states, 1), torch.stack(state_gradients[::-1], 1), torch.stack(errors, 1)
    d_scores = scale * (do @ r.mT * beta.mT).tril()
    d_keys = -(beta * (by_error @ r.mT) * beta.mT).tril(-1)
    by_output, by_value, by_key = scale * before * (do @ s), before * beta * (by_error @ s), after * beta * (r @ e)
    own = d_scores.diagonal(dim1=-2, dim2=-1)[..., None]
    dq, dk = by_output + own * k, by_key - by_value + own * q
    d_gate = _sum_from(q * by_output - k * by_value) + _sum_before(k * by_key) + (kept * (e * s).sum(-2))[..., None, :]
    for level in levels:
        (_, upper_q), (lower_k, upper_k) = level.halves(q), level.halves(k)
        from_lower = level.backwards * lower_k
        from_q, from_k = level.forwards * upper_q, level.forwards * upper_k
        scored, keyed = level.block(d_scores), level.block(d_keys)
        to_q, to_k = scored @ from_lower, keyed @ from_lower
        to_lower = scored.mT @ from_q + keyed.mT @ from_k
        dq = dq + level.joined(torch.zeros_like(to_lower), level.forwards * to_q)
        dk = dk + level.joined(level.backwards * to_lower, level.forwards * to_k)
        d_gate = d_gate + level.joined(_sum_before(from_lower * to_lower), _sum_from(from_q * to_q + from_k * to_k))
    d_beta = (by_error * r).sum(-1)
    found: list[Any] = [gdn.from_chunks(x, tokens) for x in (dq, dk, d_beta, d_gate)]
    return ChunkGradients(found[0], found[1], d_value, found[2], found[3], later)
