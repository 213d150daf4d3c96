"""The Gated Delta Net operators on CPU tensors: what the public functions mean, on top of `gdn.recurrent` and `gdn.chunked`.

Shapes and dtypes were checked by the C++ operators; what depends on values (slots, accepted counts) is checked here, before
anything is written. Results have the documented dtypes, except that fp64 inputs stay fp64 (gradcheck, oracles).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from . import gdn

SPEC_VERIFY = 2
SOFTPLUS_THRESHOLD = 20.0


def _log_decay(A_log: Tensor, dt_bias: Tensor, a: Tensor) -> Tensor:
    """−exp(A_log) · softplus(a + dt_bias), softplus(x) = x above 20.

    Where exp(A_log) is infinite or softplus is lost below the smallest number, −exp(A_log + ln softplus(x)), which is
    −exp(A_log + x) for such x: infinity times 0 would be NaN.
    """
    dtype = gdn.promoted_dtype(A_log, dt_bias, a)
    limits = torch.finfo(dtype)
    largest, lowest = math.log(limits.max) - 1, math.log(limits.tiny) + 8
    rate_log, x = torch.broadcast_tensors(A_log.to(dtype), a.to(dtype) + dt_bias.to(dtype))
    by_logarithm, tiny = (rate_log > largest) | (x < lowest), x < lowest
    # Both forms are evaluated everywhere: where one does not apply it is given zeros, so that its gradients stay finite.
    soft = F.softplus(x.masked_fill(tiny, 0), threshold=SOFTPLUS_THRESHOLD)
    logarithm = (rate_log + torch.where(tiny, x, soft.log())).masked_fill(~by_logarithm, 0)
    return -torch.where(by_logarithm, logarithm.exp(), rate_log.masked_fill(by_logarithm, 0).exp() * soft)


def _sigmoid(b: Tensor) -> Tensor:
    return torch.sigmoid(b.to(gdn.promoted_dtype(b)))


def fused_gdn_gating(A_log: Tensor, dt_bias: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """beta = sigmoid(b) in b's dtype and gate = −exp(A_log) · softplus(a + dt_bias) in fp32; a, b (…,Hv)."""
    return _sigmoid(b).to(b.dtype), _log_decay(A_log, dt_bias, a)


def recurrent_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor | None,
    beta: Tensor,
    gate: Tensor,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    inference_mode: int = 0,
    is_qk_norm: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, new_state): the final state, or under SPEC_VERIFY the state after every token ((B,T,…), packed (N,…)).

    Under SPEC_VERIFY a rank-5 state (B,S,Hv,dv,dk) holds the states of a previous verify, and sequence b starts from
    state[b, max(num_accepted_tokens[b], 1) − 1]; without num_accepted_tokens from state[b, 0].
    """
    start = state
    if state is not None and state.dim() == 5:
        chosen = _accepted_column("recurrent_forward", num_accepted_tokens, state.shape[0], state.shape[1], state.device)
        start = state[torch.arange(state.shape[0], device=state.device), chosen]
    verify = inference_mode == SPEC_VERIFY
    output, final_state, steps = gdn.recurrent(
        query, key, value, beta, gate, start, cu_seqlens, scale=scale, use_qk_l2norm=is_qk_norm, keep_steps=verify
    )
    new_state = final_state if steps is None else steps
    return output.to(value.dtype), new_state if state is None else new_state.to(state.dtype)


def _accepted_column(function: str, accepted: Tensor | None, sequences: int, columns: int, device: torch.device) -> Tensor:
    """max(accepted, 1) − 1 as int64 (sequences,): the column where a verify left the state after the accepted tokens."""
    if accepted is None:
        return torch.zeros(sequences, dtype=torch.int64, device=device)
    most = int(accepted.max()) if accepted.numel() else 0
    if most > columns:
        raise IndexError(f"{function}: num_accepted_tokens: expected <= {columns}, got {most}")
    return accepted.to(torch.int64).clamp(min=1) - 1


def _check_slots(function: str, argument: str, indices: Tensor, slots: int, null_slot: int | None = None) -> None:
    beyond = indices[(indices >= slots) & (True if null_slot is None else indices != null_slot)]
    if beyond.numel():
        raise IndexError(f"{function}: {argument}: expected < {slots}, got {int(beyond[0])}")


def _gather_states(pool: Tensor, slots: Tensor, active: Tensor) -> Tensor:
    """(N,Hv,dv,dk): the pool's states of the active sequences, zero for the others."""
    states = pool.new_zeros(slots.shape[0], *pool.shape[1:])
    states[active] = pool[slots[active]]
    return states


def _lengths(value: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    if cu_seqlens is None:
        return torch.full((value.shape[0],), value.shape[1], device=value.device)
    return cu_seqlens.diff().to(value.device)


def _zero_inactive(output: Tensor, active: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Zeros the output of the inactive sequences, whatever is in it."""
    if cu_seqlens is None:
        return torch.where(active[:, None, None, None], output, 0)
    of_token = active.repeat_interleave(cu_seqlens.diff().to(active.device))
    of_token = F.pad(of_token, (0, output.shape[0] - of_token.shape[0]))
    return torch.where(of_token[:, None, None], output, 0)


def chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = False,
    state_dtype: torch.dtype | None = None,
    state_indices: Tensor | None = None,
    checkpoint_every: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, final_state, checkpoints); the last as in `gdn.chunked`, empty without checkpoint_every.

    The states have dtype `state_dtype`, else that of state, else fp32. With state_indices (N,), state is a pool
    (slots,Hv,dv,dk), updated in place and returned as final_state; a negative index skips its sequence: output and checkpoints
    are zero and no slot is touched.
    """

    def run(start: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        inputs = (query, key, value, beta, gate, start, cu_seqlens)
        return gdn.chunked(*inputs, scale=scale, use_qk_l2norm=use_qk_l2norm, checkpoint_every=checkpoint_every)

    if state is None or state_indices is None:
        output, final_state, checkpoints = run(state)
        stored = state_dtype or (final_state.dtype if state is None else state.dtype)
        return output.to(value.dtype), final_state.to(stored), checkpoints.to(stored)

    indices = state_indices.to(torch.int64)
    _check_slots("chunked_forward", "state_indices", indices, state.shape[0])
    active, lengths = indices >= 0, _lengths(value, cu_seqlens)
    output, final_state, checkpoints = run(_gather_states(state, indices, active))
    written = active & (lengths > 0)
    with torch.no_grad():
        state[indices[written]] = final_state[written].to(state.dtype)
    counts = lengths // checkpoint_every if checkpoint_every else torch.zeros_like(lengths)
    checkpoints = torch.where(active.repeat_interleave(counts)[:, None, None, None], checkpoints, 0)
    return _zero_inactive(output.to(value.dtype), active, cu_seqlens), state, checkpoints.to(state.dtype)


@torch.no_grad()
def fused_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    state_pool: Tensor,
    state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    step_states: Tensor | None = None,
    step_slots: Tensor | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
) -> Tensor:
    """The serving step: gating, then the recurrence from and to slots of state_pool (slots,Hv,dv,dk), in place.

    Sequence n reads slot indices[n] (n itself without indices) and writes its last state there. With indices (N,T) it reads
    indices[n, max(num_accepted_tokens[n], 1) − 1] (column 0 without counts) and writes the state after token t to
    indices[n, t]. With step_states (rows,S,Hv,dv,dk) the state after token t goes to step_states[step_slots[n], t] instead and
    the pool stays as it was. A slot to read that is negative or null_slot skips its sequence, with zero output; a slot to write
    that is so is not written. States are rounded when stored, never between the tokens of one call.
    """
    lengths = _lengths(value, cu_seqlens)
    sequences, device = lengths.shape[0], value.device
    indices = torch.arange(sequences, device=device) if state_indices is None else state_indices.to(torch.int64)
    _check_slots("fused_decode", "state_indices", indices, state_pool.shape[0], null_slot)
    per_token = indices.dim() == 2
    if per_token:
        column = _accepted_column("fused_decode", num_accepted_tokens, sequences, indices.shape[1], device)
        slots = indices[torch.arange(sequences, device=device), column]
    else:
        slots = indices
    active = (slots >= 0) & (True if null_slot is None else slots != null_slot)
    if step_states is not None and step_slots is not None:
        _check_slots("fused_decode", "step_slots", step_slots, step_states.shape[0])
        _check_width("fused_decode", "step_states", lengths, step_states.shape[1])
    elif per_token:
        _check_width("fused_decode", "state_indices", lengths, indices.shape[1])

    keep_steps = per_token or step_states is not None
    output, final_state, steps = gdn.recurrent(
        query,
        key,
        value,
        _sigmoid(b),
        _log_decay(A_log, dt_bias, a),
        _gather_states(state_pool, slots, active),
        cu_seqlens,
        scale=scale,
        use_qk_l2norm=use_qk_l2norm,
        keep_steps=keep_steps,
    )
    if steps is None:
        written = active & (lengths > 0)
        state_pool[slots[written]] = final_state[written].to(state_pool.dtype)
    else:
        sequence, token, row = _tokens_of(lengths, active)
        after = steps.flatten(0, 1)[row] if cu_seqlens is None else steps[row]
        if step_states is not None and step_slots is not None:
            rows = step_slots[sequence]
            kept = rows >= 0
            step_states[rows[kept], token[kept]] = after[kept].to(step_states.dtype)
        else:
            targets = indices[sequence, token]
            kept = (targets >= 0) & (True if null_slot is None else targets != null_slot)
            state_pool[targets[kept]] = after[kept].to(state_pool.dtype)
    return _zero_inactive(output.to(value.dtype), active, cu_seqlens)


def _check_width(function: str, argument: str, lengths: Tensor, width: int) -> None:
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > width:
        raise IndexError(f"{function}: {argument}: expected room for {longest} tokens, got {width}")


def _tokens_of(lengths: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token of an active sequence: its sequence, its place in it, its row among all tokens of the batch."""
    sequence = torch.arange(lengths.shape[0], device=lengths.device).repeat_interleave(lengths)
    row = torch.arange(sequence.shape[0], device=lengths.device)
    token = row - (lengths.cumsum(0) - lengths)[sequence]
    chosen = active[sequence]
    return sequence[chosen], token[chosen], row[chosen]


def chunk_local_cumsum(input: Tensor, head_first: bool = False, cu_seqlens: Tensor | None = None) -> Tensor:
    """Inclusive cumsum in fp32 over time inside each chunk of 64 tokens, starting anew with every sequence. What is below
    `gdn.LOWEST_GATE` counts as that.

    (B,T,H), with head_first (B,H,T), or packed (N,H) with cu_seqlens, head_first (H,N).
    """
    x = input.to(gdn.promoted_dtype(input))
    x = x.clamp(min=gdn.LOWEST_GATE[x.dtype])
    x = x if not head_first else x.transpose(-1, -2)
    x = x if x.dim() == 3 else x[None]
    spans = [(0, x.shape[1])] if cu_seqlens is None else gdn.sequence_spans(cu_seqlens, x.shape[1])
    summed = torch.cat([_cumsum_in_chunks(x[:, first:last]) for first, last in spans] + [x[:, :0]], dim=1)
    summed = F.pad(summed, (0, 0, 0, x.shape[1] - summed.shape[1])).view(*x.shape[1 if input.dim() == 2 else 0 :])
    return summed.transpose(-1, -2).contiguous() if head_first else summed


def _cumsum_in_chunks(x: Tensor) -> Tensor:
    return gdn.from_chunks(gdn.to_chunks(x, gdn.CHUNK).cumsum(-1), x.shape[1])


def transpose_to_mn_major(input: Tensor, alignment: int = 16) -> Tensor:
    """The same values (…,M,K) with M contiguous; a column of M takes a multiple of `alignment` bytes, the padding is zero."""
    *batch, m, k = input.shape
    unit = alignment // input.element_size()
    columns = input.new_zeros(*batch, k, -(-m // unit) * unit)
    return columns[..., :m].copy_(input.mT).mT


def _chunks(x: Tensor, cu_seqlens: Tensor | None, repeat_last: bool = False) -> Tensor:
    """(B,T,H,…) or packed (N,H,…) → (B,chunks,H,64,…), packed sequences one after the other with B = 1."""
    if cu_seqlens is None:
        return gdn.to_chunks(x, gdn.CHUNK, repeat_last)
    spans = gdn.sequence_spans(cu_seqlens, x.shape[0])
    return torch.cat([gdn.to_chunks(x[None, i:j], gdn.CHUNK, repeat_last) for i, j in [*spans, (0, 0)]], dim=1)


def _tokens(x: Tensor, cu_seqlens: Tensor | None, like: Tensor) -> Tensor:
    """Back from `_chunks`; the number of tokens is that of `like`."""
    if cu_seqlens is None:
        return gdn.from_chunks(x, like.shape[1])
    pieces, chunk = [], 0
    for first, last in gdn.sequence_spans(cu_seqlens, like.shape[0]):
        count = -(-(last - first) // gdn.CHUNK)
        pieces.append(gdn.from_chunks(x[:, chunk : chunk + count], last - first))
        chunk += count
    return gdn.pack(pieces, like.shape[0], gdn.from_chunks(x, 0)[0])


def _promote(*tensors: Tensor) -> list[Tensor]:
    dtype = gdn.promoted_dtype(*tensors)
    return [x.to(dtype) for x in tensors]


def _cumulated(gate: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like[..., 0]) if gate is None else gate


# The three pieces of the chunked form, on token layout. They return the dtype of the arithmetic: the caller's tensors round.
# The gate is cumulated already (chunk_local_cumsum); None means no decay.


def compute_u_w(
    k: Tensor, v: Tensor, beta: Tensor, gate_cumsum: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """u (…,Hv,dv) and w (…,Hv,dk) of `gdn.chunk_u_w`."""
    k, v, beta, gate = _promote(k, v, beta, _cumulated(gate_cumsum, v))
    k = gdn.repeat_heads(k, v.shape[-2])
    kc, vc, bc = (_chunks(x, cu_seqlens) for x in (k, v, beta))
    u, w = gdn.chunk_u_w(kc, vc, bc, _chunks(gate, cu_seqlens, repeat_last=True))
    return _tokens(u, cu_seqlens, v), _tokens(w, cu_seqlens, v)


def seq_state_update(
    k: Tensor,
    u: Tensor,
    w: Tensor,
    gate: Tensor | None = None,
    initial: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of `gdn.chunk_states`: the states before each chunk ((B,chunks,Hv,dv,dk), packed (chunks,Hv,dv,dk)), the final state
    (B,Hv,dv,dk) and v' (like u), from the state `initial` (B,Hv,dv,dk) or zero."""
    k, u, w, gate = _promote(k, u, w, _cumulated(gate, u))
    k = gdn.repeat_heads(k, u.shape[-2])
    sequences = u.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    state = u.new_zeros(sequences, *u.shape[-2:], k.shape[-1]) if initial is None else initial.to(u.dtype)

    def one(k: Tensor, u: Tensor, w: Tensor, gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kc, uc, wc = (gdn.to_chunks(x, gdn.CHUNK) for x in (k, u, w))
        before, final_state, v_new = gdn.chunk_states(kc, uc, wc, gdn.to_chunks(gate, gdn.CHUNK, repeat_last=True), state)
        return before, final_state, gdn.from_chunks(v_new, u.shape[1])

    if cu_seqlens is None:
        return one(k, u, w, gate, state)
    spans = gdn.sequence_spans(cu_seqlens, u.shape[0])
    runs = [one(k[None, i:j], u[None, i:j], w[None, i:j], gate[None, i:j], state[n : n + 1]) for n, (i, j) in enumerate(spans)]
    before = torch.cat([state[:0], *(run[0][0] for run in runs)])
    final_state = torch.cat([state[:0], *(run[1] for run in runs)])
    return before, final_state, gdn.pack([run[2] for run in runs], u.shape[0], u)


def compute_o(
    q: Tensor,
    states: Tensor,
    k: Tensor,
    v_new: Tensor,
    gate: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """o (…,Hv,dv) of `gdn.chunk_outputs`, from the states before each chunk and v'."""
    q, states, k, v_new, gate = _promote(q, states, k, v_new, _cumulated(gate, v_new))
    q, k = gdn.repeat_heads(q, v_new.shape[-2]), gdn.repeat_heads(k, v_new.shape[-2])
    qc, kc, vc = (_chunks(x, cu_seqlens) for x in (q, k, v_new))
    gc = _chunks(gate, cu_seqlens, repeat_last=True)
    states = states if cu_seqlens is None else states[None]
    o = gdn.chunk_outputs(qc, states, kc, vc, gc, q.shape[-1] ** -0.5 if scale is None else scale)
    return _tokens(o, cu_seqlens, v_new)
