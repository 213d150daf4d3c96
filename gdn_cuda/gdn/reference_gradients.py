"""Gradients of the Gated Delta Net in plain torch, by the formulas that the kernels compute: chunk by chunk, from states and
their gradients at the borders of chunks.

With A, T, P and V' as in `gdn_cuda.gdn.reference`, U = T diag(β), R = V'/β, G the cumulative gate and E the gradient of the
state after a chunk:

    dV' = Pᵀ dO + exp(G_C − G) (K Eᵀ)      dV = Uᵀ dV'      ∂L/∂S = exp(G_C) E + (scale exp(G) dO)ᵀ Q − (exp(G) dV)ᵀ K
    dP = scale · tril(dO Rᵀ) ⊙ exp(G_i − G_j) ⊙ β_j         dA = −tril₋₁(dV Rᵀ) ⊙ exp(G_i − G_j) ⊙ β_j
    dQ = scale exp(G) (dO S) + dP K
    dK = exp(G_C − G) β (R E) − exp(G) (dV S) + dPᵀ Q + (dA + dAᵀ) K
    dβ_i = dV_i·R_i / β_i
    dg_t = Σ_{i≥t} s_i + Σ_{j<t} u_j + exp(G_C) ⟨E, S⟩ + Σ_{i≥t>j} (dP ⊙ Q Kᵀ + dA ⊙ K Kᵀ)_ij
    s_i = q_i·[scale exp(G) dO S]_i − k_i·[exp(G) dV S]_i      u_j = k_j·[exp(G_C − G) β R E]_j

Every term of dg carries the decay across token t: a reset has a gradient of exactly 0, and nothing cancels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference as gdn
from .channel_gradients import channel_gradients

LEAST_BETA = 2.0**-60  # a beta of 0 counts as this, so that R, and with it the gradient of beta, exists


class Gradients(NamedTuple):
    """In the dtype of the arithmetic; None where only those of value and state are computed."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    beta: Tensor | None
    gate: Tensor | None
    state: Tensor


def gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    grad_out: Tensor,
    grad_final_state: Tensor | None,
    *,
    scale: float,
    use_qk_l2norm: bool,
    only_value_and_state: bool = False,
    chunk: int = gdn.CHUNK,
) -> Gradients:
    """Shapes are those of `gdn_cuda.gdn.reference`, with as many heads in query as in key, or fewer than in value. Tokens of no
    sequence have gradients of 0, whatever they are. Gates of channels have gradients by `channel_gradients`, which has a chunk
    of its own."""
    dtype = gdn.promoted_dtype(query, key, value, beta, gate, state)
    tokens = value.shape[0]
    spans = [] if cu_seqlens is None else gdn.sequence_spans(cu_seqlens, tokens)
    end = None if cu_seqlens is None else spans[-1][1] if spans else 0  # packed: where the last sequence ends
    q, k, v, beta, gate, grad_out = (x[:end].to(dtype) for x in (query, key, value, beta, gate, grad_out))
    sequences = v.shape[0] if cu_seqlens is None else len(spans)
    zeros = v.new_zeros(sequences, v.shape[-2], v.shape[-1], k.shape[-1])
    states, last = (zeros if x is None else x.to(dtype) for x in (state, grad_final_state))
    unit_q, unit_k = (x * _inverse_norm(x) if use_qk_l2norm else x for x in (q, k))
    rows = (unit_q, unit_k, v, beta, gate, grad_out)
    options: dict[str, Any] = {"scale": scale, "only_value_and_state": only_value_and_state, "chunk": chunk}
    if cu_seqlens is None:
        found = _of_batch(rows, states, last, **options)
    else:
        parts = [
            _of_batch(tuple(x[None, a:b] for x in rows), states[n : n + 1], last[n : n + 1], **options)
            for n, (a, b) in enumerate(spans)
        ]
        found = _joined(parts, rows, states, only_value_and_state)
    if use_qk_l2norm and not only_value_and_state:
        found = found._replace(query=_through_norm(found.query, q), key=_through_norm(found.key, k))
    return found if cu_seqlens is None else Gradients._make([*(_padded(x, tokens) for x in found[:5]), found.state])


def _inverse_norm(x: Tensor) -> Tensor:
    return torch.rsqrt((x * x).sum(-1, keepdim=True) + gdn.L2NORM_EPSILON)


def _through_norm(gradient: Any, x: Tensor) -> Tensor:
    """From the gradient of a normalised row to that of the row. In fp64, as of a short row almost all cancels."""
    wide, inverse, dx = x.double(), _inverse_norm(x.double()), gradient.double()
    return (inverse * (dx - inverse**2 * wide * (wide * dx).sum(-1, keepdim=True))).to(x.dtype)


def _joined(parts: list[Gradients], rows: tuple[Tensor, ...], states: Tensor, only_value_and_state: bool) -> Gradients:
    """The gradients of packed sequences from those of each; `rows`: what they are the gradients of."""

    computed = [field for field in Gradients._fields[:5] if field == "value" or not only_value_and_state]
    absent = Gradients(None, None, rows[2], None, None, torch.cat([states[:0], *(part.state for part in parts)]))
    joined = {
        field: torch.cat([like[:0], *(getattr(part, field)[0] for part in parts)])
        for field, like in zip(Gradients._fields, rows, strict=False)
        if field in computed
    }
    return absent._replace(**joined)


def _padded(x: Tensor | None, tokens: int) -> Tensor | None:
    return x if x is None else torch.cat([x, x.new_zeros(tokens - x.shape[0], *x.shape[1:])])


def _of_batch(
    rows: tuple[Tensor, ...],
    state: Tensor,
    grad_last: Tensor,
    *,
    scale: float,
    only_value_and_state: bool,
    chunk: int,
) -> Gradients:
    """Gradients in a padded batch with normalised queries and keys."""
    q, k, v, beta, gate, grad_out = rows
    tokens, heads = v.shape[1], v.shape[2]
    if tokens == 0:
        return Gradients._make([*(torch.zeros_like(x) for x in (q, k, v, beta, gate)), grad_last])
    if gate.dim() > beta.dim():
        repeated = (gdn.repeat_heads(q, heads), gdn.repeat_heads(k, heads), v, beta, gate, grad_out)
        found = channel_gradients(repeated, state, grad_last, scale=scale, only_value_and_state=only_value_and_state)
        dq, dk = (None if x is None else _summed_heads(x, y) for x, y in ((found.query, q), (found.key, k)))
        return Gradients._make(found._replace(query=dq, key=dk))
    wide = (gdn.repeat_heads(q, heads), gdn.repeat_heads(k, heads), v, torch.where(beta == 0, LEAST_BETA, beta), gate, grad_out)
    q_, k_, v_, beta_, gate_, do = (gdn.to_chunks(x, chunk) for x in wide)
    beta_ = torch.where(beta_ == 0, LEAST_BETA, beta_)[..., None]  # padding, too
    total = gate_.clamp(min=gdn.LOWEST_GATE[gate.dtype]).double().cumsum(-1)
    decay, dtype = gdn.decay_between(total, v.dtype), v.dtype
    before, after = total.exp().to(dtype)[..., None], (total[..., -1:] - total).exp().to(dtype)[..., None]
    kept = total[..., -1:].exp().to(dtype)[..., None]
    by_key = beta_ * (k_ @ k_.mT) * decay
    inverse = torch.linalg.solve_triangular(by_key, torch.diag_embed(beta_[..., 0]), upper=False, unitriangular=True)
    scores = scale * (q_ @ k_.mT) * decay

    later, dv, state_gradients = grad_last, [], []
    for c in reversed(range(k_.shape[1])):
        state_gradients.append(later)
        dv.append(inverse[:, c].mT @ (scores[:, c].mT @ do[:, c] + after[:, c] * (k_[:, c] @ later.mT)))
        later = gdn.decayed(later, kept[:, c]) + (scale * before[:, c] * do[:, c]).mT @ q_[:, c]
        later = later - (before[:, c] * dv[-1]).mT @ k_[:, c]
    dv_ = torch.stack(dv[::-1], 1)
    d_value = gdn.from_chunks(dv_, tokens).masked_fill((beta == 0)[..., None], 0)
    if only_value_and_state:
        return Gradients(None, None, d_value, None, None, later)
    states, errors = [], []
    for c in range(k_.shape[1]):
        states.append(state)
        new = inverse[:, c] @ (v_[:, c] - before[:, c] * (k_[:, c] @ state.mT))
        errors.append(new / beta_[:, c])
        state = gdn.decayed(state, kept[:, c]) + (after[:, c] * new).mT @ k_[:, c]

    s, r = torch.stack(states, 1), torch.stack(errors, 1)
    e = torch.stack(state_gradients[::-1], 1)
    to_later = decay * beta_.mT
    d_scores = scale * (do @ r.mT) * to_later
    d_keys = (-(dv_ @ r.mT) * to_later).tril(-1)
    by_output, by_value, by_error = scale * before * (do @ s), before * (dv_ @ s), after * beta_ * (r @ e)
    dq = by_output + d_scores @ k_
    dk = by_error - by_value + d_scores.mT @ q_ + (d_keys + d_keys.mT) @ k_
    d_beta = (dv_ * r).sum(-1) / beta_[..., 0]
    until = (q_ * by_output - k_ * by_value).sum(-1)
    since = (k_ * by_error).sum(-1)
    moments = d_scores * (q_ @ k_.mT) + d_keys * (k_ @ k_.mT)
    d_gate = _sum_from(until) + _sum_before(since) + (kept[..., 0] * (e * s).sum((-2, -1))[..., None])
    d_gate = d_gate + _sum_across(moments)
    dq, dk, d_beta, d_gate = (gdn.from_chunks(x, tokens) for x in (dq, dk, d_beta, d_gate))
    dq, dk = (_summed_heads(x, y) for x, y in ((dq, q), (dk, k)))
    return Gradients(dq, dk, d_value, d_beta, d_gate, later)


def _summed_heads(x: Tensor, like: Tensor) -> Tensor:
    """Over the value heads of a key head."""
    return x.unflatten(2, (like.shape[2], -1)).sum(3)


def _sum_from(x: Tensor) -> Tensor:
    """Σ_{i≥t} x_i."""
    return x.flip(-1).cumsum(-1).flip(-1)


def _sum_before(x: Tensor) -> Tensor:
    """Σ_{j<t} x_j. Shifted before it is summed: an inclusive sum less x would cancel."""
    return torch.nn.functional.pad(x[..., :-1], (1, 0)).cumsum(-1)


def _sum_across(x: Tensor) -> Tensor:
    """Σ_{i≥t>j} x_ij for each t."""
    return _sum_before(x).tril().sum(-2)
