"""The Gated Delta Net in plain torch: the literal recurrence, and its chunked form.

Any device, any float dtype, differentiable. Arithmetic is in fp32, or in fp64 if an input or `compute_dtype` is fp64; results
are returned in that dtype and callers round them.

Shapes: query, key (B,T,Hk,dk), value (B,T,Hv,dv), beta, gate (B,T,Hv), state (B,Hv,dv,dk). In the recurrence and `chunked` the
gate may have a value for every channel of the key, (B,T,Hv,dk): Kimi Delta Attention. Packed tensors have no B: the tokens of
all sequences in order are the first dimension N, and cu_seqlens (B+1) is given. Value head h reads key head h // (Hv / Hk).
In the recurrence and the chunked form query may have more heads, Hq, a multiple of value's: key then has those of value, and
everything else those of query; head h reads head h // (Hq / Hv) of key and value.
Tokens after cu_seqlens[-1] belong to no sequence: their output is zero.

A gate whose exponential is 0 in the dtype of the arithmetic, for example -inf, is an exact reset: nothing is left of the state,
neither infinities nor NaN, and no gradient passes it. A channel's gate resets the channel's column of the state.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _C

CHUNK = _C.GDN_CHUNK
L2NORM_EPSILON = 1e-6
_CHUNKS_AT_ONCE = 32  # bounds the memory of a long prefill; the result does not depend on it
# Gates are clamped to this before they are summed: their exponential is 0 anyway, and the sum keeps its precision for later
# gates. These are powers of two, so that sums of resets are exact.
LOWEST_GATE = {torch.float32: -128.0, torch.float64: -1024.0}


def promoted_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of the arithmetic: fp64 if any of the tensors is fp64, else fp32."""
    return reduce(torch.promote_types, (x.dtype for x in tensors if x is not None), torch.float32)


def l2norm(x: Tensor) -> Tensor:
    """x / sqrt(Σx² + 1e-6) over the last dimension."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + L2NORM_EPSILON)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """(…,Hk,dk) → (…,heads,dk): head h gets a copy of head h // (heads / Hk)."""
    return x.repeat_interleave(heads // x.shape[-2], dim=-2)


def heads_of(query: Tensor, value: Tensor) -> int:
    """The number of heads of outputs, gates and states."""
    return max(query.shape[-2], value.shape[-2])


def sequence_spans(cu_seqlens: Tensor, tokens: int) -> list[tuple[int, int]]:
    """The (first, last + 1) tokens of every packed sequence."""
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0 or offsets[-1] > tokens or any(a > b for a, b in pairwise(offsets)):
        raise ValueError(f"cu_seqlens: expected offsets that start at 0, never decrease and end by {tokens}, got {offsets}")
    return list(pairwise(offsets))


def pack(sequences: list[Tensor], tokens: int, like: Tensor) -> Tensor:
    """Joins tensors (1,L,…) of consecutive sequences to (tokens,…), with zeros after the last; other sizes as in `like`."""
    rest = like.new_zeros(tokens - sum(x.shape[1] for x in sequences), *like.shape[1:])
    return torch.cat([*(x[0] for x in sequences), rest])


def decayed(state: Tensor, decay: Tensor) -> Tensor:
    """decay · state, broadcast. Zero where decay is zero, whatever the state: 0 · inf and its gradients would be NaN."""
    return decay * state.masked_fill(decay == 0, 0)


def recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    keep_steps: bool = False,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The definition, token by token:

        S ← exp(g_t) S;   v' = β_t (v_t − S k_t);   S ← S + v' k_tᵀ;   o_t = scale · S q_t

    and S ← S diag(exp(g_t)) where the gate has value's rank, (…,Hv,dk).

    Returns output (like value, or with query's heads), final state (B,Hv,dv,dk) and, with `keep_steps`, the state after every
    token ((B,T,Hv,dv,dk), packed (N,Hv,dv,dk)), else None.
    """
    x = _prepare(query, key, value, beta, gate, state, cu_seqlens, scale, use_qk_l2norm, compute_dtype)
    if cu_seqlens is None:
        return _recurrence(x, keep_steps)
    runs = [_recurrence(sequence, keep_steps) for sequence in x.sequences(cu_seqlens)]
    tokens = value.shape[0]
    output = pack([run[0] for run in runs], tokens, x.v)
    final_state = torch.cat([x.state[:0], *(run[1] for run in runs)])
    steps = pack([run[2] for run in runs if run[2] is not None], tokens, x.state) if keep_steps else None
    return output, final_state, steps


class _Inputs(NamedTuple):
    """Inputs of both forms, prepared: one dtype, the same head count for all, a state and a scale."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    gate: Tensor
    state: Tensor
    scale: float

    def part(self, first: int, last: int, state: Tensor) -> _Inputs:
        """Tokens [first, last) of a padded batch, with another initial state."""
        q, k, v, beta, gate = (x[:, first:last] for x in self[:5])
        return _Inputs(q, k, v, beta, gate, state, self.scale)

    def sequences(self, cu_seqlens: Tensor) -> list[_Inputs]:
        """The packed sequences, each as a padded batch of one."""
        alone = []
        for n, (first, last) in enumerate(sequence_spans(cu_seqlens, self.v.shape[0])):
            q, k, v, beta, gate = (x[None, first:last] for x in self[:5])
            alone.append(_Inputs(q, k, v, beta, gate, self.state[n : n + 1], self.scale))
        return alone


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float | None,
    use_qk_l2norm: bool,
    compute_dtype: torch.dtype | None,
) -> _Inputs:
    dtype = compute_dtype or promoted_dtype(query, key, value, beta, gate, state)
    q, k, v, beta, gate = (x.to(dtype) for x in (query, key, value, beta, gate))
    if use_qk_l2norm:
        q, k = l2norm(q), l2norm(k)
    heads, dk = heads_of(q, v), k.shape[-1]
    sequences = v.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    # The expanded zero takes the memory of one element, however many sequences there are.
    zeros = v.new_zeros(1, 1, 1, 1).expand(sequences, heads, v.shape[-1], dk)
    start = zeros if state is None else state.to(dtype)
    q, k, v = (repeat_heads(x, heads) for x in (q, k, v))
    return _Inputs(q, k, v, beta, gate, start, dk**-0.5 if scale is None else scale)


def _recurrence(x: _Inputs, keep_steps: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """The recurrence of a padded batch."""
    state, outputs, steps = x.state, [], []
    for t in range(x.v.shape[1]):
        q, k, v, beta, gate = x.q[:, t], x.k[:, t], x.v[:, t], x.beta[:, t], x.gate[:, t]
        state = decayed(state, gate.exp()[..., None, :] if gate.dim() > beta.dim() else gate.exp()[..., None, None])
        correction = beta[..., None] * (v - (state @ k[..., None]).squeeze(-1))
        state = state + correction[..., :, None] * k[..., None, :]
        outputs.append(x.scale * (state @ q[..., None]).squeeze(-1))
        if keep_steps:
            steps.append(state)
    output, state = torch.stack(outputs, dim=1) if outputs else torch.zeros_like(x.v), state.contiguous()
    if not keep_steps:
        return output, state, None
    return output, state, torch.stack(steps, dim=1) if steps else state[:, None][:, :0]


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    *,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    checkpoint_every: int = 0,
    compute_dtype: torch.dtype | None = None,
    chunk: int = CHUNK,
    output_final_state: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same results, `chunk` tokens at a time, by `chunk_u_w`, `chunk_states` and `chunk_outputs`; with a gate for every
    channel of the key token by token.

    Returns output, final state and checkpoints (total,Hv,dv,dk): the states after every `checkpoint_every` tokens (a multiple
    of `chunk`; 0 means none), floor(length / checkpoint_every) for each sequence, in sequence order. Without
    `output_final_state` the final state has no rows, and packed sequences without a state need memory for one state at a time.
    """
    if checkpoint_every % chunk:
        raise ValueError(f"chunked: checkpoint_every: expected a multiple of {chunk}, got {checkpoint_every}")
    x = _prepare(query, key, value, beta, gate, state, cu_seqlens, scale, use_qk_l2norm, compute_dtype)
    if cu_seqlens is None:
        output, final_state, checkpoints = _chunked(x, checkpoint_every, chunk)
        return output, final_state[: None if output_final_state else 0].contiguous(), checkpoints.flatten(0, 1)
    outputs, final_states, found = [], [x.state[:0]], [x.state[:0]]
    for sequence in x.sequences(cu_seqlens):
        output, final_state, checkpoints = _chunked(sequence, checkpoint_every, chunk)
        outputs.append(output)
        found.append(checkpoints[0])
        if output_final_state:
            final_states.append(final_state)
    return pack(outputs, value.shape[0], x.v), torch.cat(final_states), torch.cat(found)


def _chunked(x: _Inputs, checkpoint_every: int, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    """The chunked form of a padded batch; checkpoints are (B, floor(T / checkpoint_every), Hv, dv, dk)."""
    state = x.state
    outputs, checkpoints = [torch.zeros_like(x.v[:, :0])], [state[:, None][:, :0]]
    tokens, span = x.v.shape[1], _CHUNKS_AT_ONCE * chunk
    has_channel_gates = x.gate.dim() > x.beta.dim()
    for first in range(0, tokens, span):
        last = min(first + span, tokens)
        group = x.part(first, last, state)
        if has_channel_gates:
            output, after = _chunks_by_token(group, chunk)
        else:
            output, after = _chunks_at_once(group, chunk)
            if bool((group.gate.exp() == 0).any()) and not bool(output.isfinite().all() & after.isfinite().all()):
                output, after = _chunks_by_token(group, chunk)
        outputs.append(output)
        state = after[:, -1]
        ends = range(first + chunk, last + 1, chunk)
        checkpoints += [after[:, i : i + 1] for i, end in enumerate(ends) if checkpoint_every and end % checkpoint_every == 0]
    return torch.cat(outputs, dim=1), state, torch.cat(checkpoints, dim=1)


def _chunks_at_once(x: _Inputs, chunk: int) -> tuple[Tensor, Tensor]:
    """Output of a padded batch, and the state after every chunk (B,chunks,H,dv,dk)."""
    tokens = x.v.shape[1]
    q, k, v, beta, gate = (to_chunks(part, chunk) for part in x[:5])
    # In fp32 the difference of two long sums of strong gates would lose digits.
    cumulated = gate.clamp(min=LOWEST_GATE[gate.dtype]).double().cumsum(-1)
    u, w = chunk_u_w(k, v, beta, cumulated)
    before, state, v_new = chunk_states(k, u, w, cumulated, x.state)
    output = from_chunks(chunk_outputs(q, before, k, v_new, cumulated, x.scale), tokens)
    return output, torch.cat([before[:, 1:], state[:, None]], dim=1)


def _chunks_by_token(x: _Inputs, chunk: int) -> tuple[Tensor, Tensor]:
    """`_chunks_at_once` by the recurrence: in the chunked form infinities and NaN would pass a reset, as 0 · inf is NaN; with a
    gate for every channel its scores would have a decay for each."""
    outputs, states = [], [x.state]
    for first in range(0, x.v.shape[1], chunk):
        output, state, _ = _recurrence(x.part(first, first + chunk, states[-1]), keep_steps=False)
        outputs.append(output)
        states.append(state)
    return torch.cat(outputs, dim=1), torch.stack(states[1:], dim=1)


# The functions below have tensors in chunks, (B,chunks,H,C,…), with key heads repeated. G is the inclusive cumsum of the gate
# within each chunk. After the end of a sequence k, v, q and beta are zero and G keeps its last value, so the state does not
# change. G may be -inf: then exp(G) is 0, and there is no decay between two such tokens. A token with exp(G) = 0 reads nothing
# from the state before the chunk, and a token with exp(G_C − G) = 0 adds nothing to the state after it.


def to_chunks(x: Tensor, chunk: int, repeat_last: bool = False) -> Tensor:
    """(B,T,H,…) → (B,chunks,H,C,…), the last chunk padded with zeros or with the last token."""
    missing = -x.shape[1] % chunk
    if missing:
        filling = x[:, -1:] if repeat_last else torch.zeros_like(x[:, -1:])
        x = torch.cat([x, filling.expand(-1, missing, *x.shape[2:])], dim=1)
    return x.reshape(x.shape[0], x.shape[1] // chunk, chunk, *x.shape[2:]).transpose(2, 3)


def from_chunks(x: Tensor, tokens: int) -> Tensor:
    """(B,chunks,H,C,…) → (B,T,H,…)."""
    return x.transpose(2, 3).flatten(1, 2)[:, :tokens]


def _finite(cumulated: Tensor) -> Tensor:
    """Sums of gates whose differences are not NaN, as −inf − −inf would be."""
    return cumulated.clamp(min=torch.finfo(cumulated.dtype).min)


def decay_between(cumulated: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(G_i − G_j) for i ≥ j, else 0: masked before exp, which would overflow for other pairs."""
    cumulated = _finite(cumulated)
    differences = cumulated[..., :, None] - cumulated[..., None, :]
    later = torch.ones(differences.shape[-2:], dtype=torch.bool, device=differences.device).triu(1)
    return differences.masked_fill(later, -torch.inf).exp().to(dtype)


def chunk_u_w(k: Tensor, v: Tensor, beta: Tensor, cumulated: Tensor) -> tuple[Tensor, Tensor]:
    """u = T (β v) and w = T (β exp(G) k), with T = (I + A)⁻¹ and A_ij = β_i (k_i·k_j) exp(G_i − G_j) for i > j, else 0."""
    a = beta[..., None] * (k @ k.mT) * decay_between(cumulated, k.dtype)  # the solver reads only what is below the diagonal
    right = torch.cat([beta[..., None] * v, (beta * cumulated.exp().to(k.dtype))[..., None] * k], dim=-1)
    solved = torch.linalg.solve_triangular(a, right, upper=False, unitriangular=True)
    return solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]


def chunk_states(k: Tensor, u: Tensor, w: Tensor, cumulated: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v' = u − w Sᵀ, then S ← exp(G_C) S + v'ᵀ (exp(G_C − G) k), chunk after chunk.

    Returns the states before each chunk (B,chunks,H,dv,dk), the last state (B,H,dv,dk) and v' (like u).
    """
    cumulated = _finite(cumulated)
    last = cumulated[..., -1:]
    kept, to_the_end = last.exp().to(k.dtype)[..., None], (last - cumulated).exp().to(k.dtype)[..., None]
    unseen, leaves_nothing = (cumulated.exp().to(k.dtype) == 0)[..., None], to_the_end == 0
    before, v_new = [state[:, None][:, :0]], [u[:, :0]]
    for c in range(k.shape[1]):
        before.append(state[:, None])
        predicted = (w[:, c] @ state.mT).masked_fill(unseen[:, c], 0)
        v_new.append((u[:, c] - predicted)[:, None])
        update = v_new[-1][:, 0].masked_fill(leaves_nothing[:, c], 0)
        state = decayed(state, kept[:, c]) + update.mT @ (to_the_end[:, c] * k[:, c])
    return torch.cat(before, dim=1), state, torch.cat(v_new, dim=1)


def chunk_outputs(q: Tensor, before: Tensor, k: Tensor, v_new: Tensor, cumulated: Tensor, scale: float) -> Tensor:
    """o = scale · ( exp(G) q Sᵀ + [ (q_i·k_j) exp(G_i − G_j) ]_{i≥j} v' ), S the state before the chunk."""
    carried = decayed(q @ before.mT, cumulated.exp().to(q.dtype)[..., None])
    decay = decay_between(cumulated, q.dtype)
    wrong = ~v_new.isfinite()
    if not bool(wrong.any()):
        return scale * (carried + (q @ k.mT * decay) @ v_new)
    # Values that are not finite have no effect after a reset, where the decay is 0.
    poisoned = (decay != 0).to(q.dtype) @ wrong.to(q.dtype) > 0
    within = (q @ k.mT * decay) @ v_new.masked_fill(wrong, 0)
    return scale * (carried + within.masked_fill(poisoned, torch.nan))
