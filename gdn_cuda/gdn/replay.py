"""Speculative verify that stores tokens instead of states: the operator, its buffers and its reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators import operator
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.ring import check_pool, names_of, new_buffers, require_buffers, require_rank
from ..operators.schema import refuse, require_tensors
from ..operators.state_slots import check_slots, is_slot
from . import reference as gdn
from .reference_operators import _packed, _zero_inactive, lengths_of, raw_gates_of_call
from .ring import RingBuffers, commit_ring, decode_by_ring, reference_by_ring

MOST_STEPS = 16
ROWS_PER_BANK = 8
_NAME = "replay_decode"
_NO_SCALES = "None with ReplayBuffers (those of ring_buffers are for int8)"
_BUFFERS = "ReplayBuffers or RingBuffers, which replay_buffers and ring_buffers make"


class ReplayBuffers(NamedTuple):
    """What `replay_decode` stores beside a pool of states: for every slot the keys, updates and decays of the last call's
    tokens. `replay_buffers` makes them. Keys and decays have two banks: some blocks read the old ones while others store new
    ones."""

    keys: Tensor
    updates: Tensor
    decays: Tensor
    banks: Tensor


def replay_buffers(
    state_pool: Tensor, steps: int, heads_k: int, *, dtype: torch.dtype = torch.bfloat16, channel_gates: bool = False
) -> ReplayBuffers:
    """Buffers for `fused_decode(…, replay=buffers)` on a pool, with no tokens in them.

    Formula:
        bytes of a slot = steps · (2 · Hk · dk · size of dtype + 4 · Hv · dv + 8 · Hv) + 4 · Hv · ⌈dv / 8⌉; with channel_gates,
        8 · Hv · dk in place of 8 · Hv

    Shapes:
        state_pool: (slots, Hv, dv, dk)
        steps: S, 1 to 16: the most tokens of a sequence in a call
        heads_k: Hk
        dtype: of query and key
        channel_gates: whether calls have a gate for every channel of the key
        keys: (slots, 2, S, Hk, dk), dtype; updates: (slots, S, Hv, dv), fp32; decays: (slots, 2, S, Hv), with channel_gates
          (slots, 2, S, Hv, dk), fp32; both are fp64 with a dtype of fp64
        banks: (slots, Hv, ⌈dv / 8⌉), fp32: 0 or 1

    Edge cases:
        A slot that is given to another sequence needs no clearing: its first call has num_accepted_tokens 0.

    Example:
        >>> buffers = gdn_cuda.replay_buffers(torch.zeros(5, 4, 16, 32), steps=3, heads_k=2)
        >>> buffers.keys.shape, buffers.updates.shape, buffers.decays.shape
        (torch.Size([5, 2, 3, 2, 32]), torch.Size([5, 3, 4, 16]), torch.Size([5, 2, 3, 4]))
    """
    slots, heads, dv, dk = check_pool(
        "replay_buffers", state_pool, "(slots, Hv, dv, dk)", ("steps", steps, MOST_STEPS), ("heads_k", heads_k)
    )
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return new_buffers(
        ReplayBuffers,
        "replay_buffers",
        state_pool,
        keys=((slots, 2, steps, heads_k, dk), dtype),
        updates=((slots, steps, heads, dv), wide),
        decays=((slots, 2, steps, heads, *([dk] if channel_gates else [])), wide),
        banks=((slots, heads, -(-dv // ROWS_PER_BANK)), torch.float32),
    )


# ---- The reference: the literal recurrence, which also stores updates


def _accepted(x: Any, active: Tensor) -> Tensor:
    if x.num_accepted_tokens is None:
        return torch.zeros_like(active, dtype=torch.int64)
    accepted = x.num_accepted_tokens.to(torch.int64).clamp(min=0)
    steps = x.keys.shape[2]
    if (beyond := accepted[active & (accepted > steps)]).numel():
        raise IndexError(f"{_NAME}: num_accepted_tokens: expected <= {steps}, got {int(beyond[0])}")
    return accepted


def _replayed(x: Any, slot: int, bank: int, accepted: int, dtype: torch.dtype) -> Tensor:
    """The state of a slot after its accepted tokens, which is also stored."""
    state = x.state_pool[slot].to(dtype, copy=True)
    for j in range(accepted):
        # These are copies because the buffers are written again before a backward.
        key, update, decay = (
            y.to(dtype, copy=True) for y in (x.keys[slot, bank, j], x.updates[slot, j], x.decays[slot, bank, j])
        )
        key = gdn.repeat_heads(key, state.shape[0])
        by_column = decay[:, None] if decay.dim() == 2 else decay[:, None, None]
        state = gdn.decayed(state, by_column) + update[..., None] * key[:, None]
    if accepted:
        x.state_pool[slot] = state.to(x.state_pool.dtype)
    return state


def _reference(x: Any) -> Tensor:
    """States are rounded when stored, never between the tokens of one call."""
    output_shape = x.value.shape
    x = _packed(x, "query", "key", "value", "a", "b")
    lengths, pool, steps = lengths_of(x.value, x.cu_seqlens), x.state_pool, x.keys.shape[2]
    sequences = lengths.shape[0]
    slots = torch.arange(sequences) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots(_NAME, "state_indices", slots, pool.shape[0], x.null_slot)
    active = is_slot(slots, x.null_slot)
    accepted = _accepted(x, active)
    if (longest := int(lengths[active].max()) if bool(active.any()) else 0) > steps:
        raise IndexError(f"{_NAME}: cu_seqlens: expected sequences of at most {steps} tokens, got {longest}")
    dtype = gdn.promoted_dtype(x.query, x.key, x.value, pool, x.updates)
    scale = x.query.shape[-1] ** -0.5 if x.scale is None else x.scale
    beta, gate = (y.to(dtype) for y in raw_gates_of_call(x))
    decay = gate.exp() if gate.dim() > beta.dim() else gate.exp()[..., None]  # for each column
    value, heads = x.value.to(dtype), x.value.shape[-2]
    query, key = (gdn.repeat_heads(y.to(dtype), heads) for y in (x.query, x.key))
    query_scale, key_scale = (
        ((y * y).sum(-1, keepdim=True) + gdn.L2NORM_EPSILON).rsqrt() if x.use_qk_l2norm else torch.ones_like(y[..., :1])
        for y in (query, key)
    )
    output = torch.zeros_like(value)
    ends = lengths.cumsum(0)
    for n in torch.where(active)[0].tolist():
        slot, length = int(slots[n]), int(lengths[n])
        old = int(bool(x.banks[slot, 0, 0]))
        state = _replayed(x, slot, old, int(accepted[n]), dtype)
        for t in range(length):
            at = (n, t) if x.cu_seqlens is None else (int(ends[n]) - length + t,)
            state = gdn.decayed(state, decay[at][:, None])
            predicted = key_scale[at] * (state @ key[at][..., None]).squeeze(-1)
            update = key_scale[at] * beta[at][:, None] * (value[at] - predicted)
            state = state + update[..., None] * key[at][:, None]
            output[at] = scale * query_scale[at] * (state @ query[at][..., None]).squeeze(-1)
            x.keys[slot, 1 - old, t], x.updates[slot, t] = x.key[at], update
            x.decays[slot, 1 - old, t] = decay[at].view(x.decays.shape[3:])
        if length:
            x.banks[slot] = 1 - old
    return _zero_inactive(output.to(x.value.dtype), active, x.cu_seqlens).view(output_shape)


@operator(reference=_reference, out="value")
def replay_decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    state_pool: Tensor,
    keys: Tensor,
    updates: Tensor,
    decays: Tensor,
    banks: Tensor,
    state_indices: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    null_slot: int | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
    allow_negative_eigenvalues: bool = False,
    lower_bound: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Speculative verify that stores tokens instead of states: `fused_decode(…, replay=ReplayBuffers(keys, …, banks))`. Returns
    the output.

    Formula:
        S ← pool[slot]; for each of the first num_accepted_tokens stored steps: S ← decay·S + update kᵀ; pool[slot] ← S; with a
        gate for every channel, S·diag(decay)
        for each token, as in fused_decode: S ← exp(gate)·S, v' = beta·(v − S k), S ← S + v' kᵀ, output = scale · S q, stored
        are key, decay = exp(gate) and update = v' / √(Σ key² + 1e-6)

    Shapes:
        query, key, value, a, b, A_log, dt_bias, scale: as in `fused_decode`; query, key and value are bf16 or fp16 (on the CPU
          fp64 too, with fp64 updates and decays), with contiguous rows of multiples of 8, query has no more heads than value,
          and T ≤ S
        state_pool: (slots, Hv, dv, dk), fp32 or bf16 (`ring_decode` takes int8): each slot contiguous, any stride between slots
        keys: (slots, 2, S, Hk, dk), the dtype of query; updates: (slots, S, Hv, dv), fp32; decays: (slots, 2, S, Hv),
          with a gate for every channel (slots, 2, S, Hv, dk), fp32
        banks: (slots, Hv, ⌈dv / 8⌉), fp32; these four are made by `replay_buffers`, each slot contiguous
        state_indices: (B,), int32 or int64; None: sequence n has slot n
        num_accepted_tokens: (B,), int32 or int64: how many tokens of the last call on the slot are accepted; None: none
        cu_seqlens: (B + 1,), int32 or int64: where packed sequences begin, and where the last one ends

    Parameters:
        null_slot, use_qk_l2norm, allow_negative_eigenvalues, lower_bound, out: as in `fused_decode`

    A state is read and written once per call, where `fused_decode` writes one for every token. The state in the pool lacks the
    tokens of the last call: `commit_replay` applies them. Stored keys are exact; updates, decays and the state before tokens
    are fp32, so that results differ from those of `fused_decode` by the roundings of fp32 sums. With a bf16 pool a call runs
    its tokens from the state before it is rounded.

    Safe under CUDA-graph capture once its kernel is loaded (`gdn_cuda.warmup`); a replay reads the indices' and counts' current
    values.

    Edge cases:
        A slot that is negative or equal to `null_slot` skips the sequence: its output is zero, and no slot is read or written.
        A slot past the pool, more than S accepted tokens, or a packed sequence of more than S tokens raises IndexError on CPU
        tensors; on a GPU the output of the sequence is NaN, and nothing else is written. A negative count is 0.
        Without new tokens, the accepted ones are applied and none is stored, so the next call has num_accepted_tokens 0.
        A decay of 0 is an exact reset. Stored tokens that are not accepted are not read: they may be NaN.
        Two sequences on one slot race.

    Example:
        >>> query, key, value = torch.randn(3, 1, 2, 4, 16).bfloat16()  # one sequence, 2 tokens, 4 heads
        >>> a, b = torch.randn(2, 1, 2, 4).bfloat16()
        >>> pool = torch.zeros(8, 4, 16, 16)
        >>> buffers = gdn_cuda.replay_buffers(pool, steps=2, heads_k=4)
        >>> gates, slot = (torch.zeros(4), torch.zeros(4)), torch.tensor([5])
        >>> output = gdn_cuda.replay_decode(query, key, value, a, b, *gates, pool, *buffers, slot)
        >>> bool(output.any()), bool(pool.any()), bool(buffers.updates[5].any())
        (True, False, True)
    """


# ---- fused_decode(…, replay=buffers)


def decode_by_replay(replay: ReplayBuffers | RingBuffers, **given: Any) -> Tensor:
    """`given`: the arguments of replay_decode and ring_decode that are not buffers."""
    if isinstance(replay, RingBuffers):
        return decode_by_ring(replay, **given)
    if not isinstance(replay, ReplayBuffers):
        refuse("fused_decode", "replay", f"{_BUFFERS}, or None", type(replay).__name__)
    if given.pop("state_scales") is not None:
        refuse("fused_decode", "state_scales", _NO_SCALES, "a tensor")
    return _decode_for_fused_decode(**given, **replay._asdict())


_decode_for_fused_decode = in_words_of_caller("fused_decode", **names_of(ReplayBuffers, "replay"))(replay_decode)
_decode_for_commit = in_words_of_caller(
    "commit_replay", **names_of(ReplayBuffers, "buffers"), query="buffers.keys", value="state_pool"
)(replay_decode)


def reference_by_replay(x: Any) -> Tensor:
    if isinstance(x.replay, RingBuffers):
        return reference_by_ring(x)
    return _reference(SimpleNamespace(**vars(x), **x.replay._asdict()))


def commit_replay(
    state_pool: Tensor,
    buffers: ReplayBuffers | RingBuffers,
    state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    *,
    state_scales: Tensor | None = None,
    null_slot: int | None = None,
) -> Tensor:
    """Applies accepted tokens that `fused_decode(…, replay=buffers)` stored to the slots of a pool. Returns the pool.

    Formula:
        S ← decay·S + update kᵀ for each of the first num_accepted_tokens stored steps; with a ring, for each pending token, and
        then for each accepted one of the last call

    Shapes:
        state_pool, state_indices, num_accepted_tokens: as in `replay_decode`; without state_indices the first slots. With a
          ring as in `ring_decode`; without either of the last two, all slots
        state_scales: as in `ring_decode`; None with buffers from `replay_buffers`

    Parameters:
        buffers: from `replay_buffers` or `ring_buffers` for the pool
        null_slot: as in `replay_decode`

    Edge cases:
        Slots and counts out of range are treated as in `replay_decode`; there is no output.
        The tokens are applied only once: the next call on the slot has num_accepted_tokens 0.

    Example:
        >>> pool = torch.zeros(2, 1, 8, 8)
        >>> buffers = gdn_cuda.replay_buffers(pool, steps=1, heads_k=1)
        >>> buffers.keys[1], buffers.updates[1], buffers.decays[1] = 2, 3, 1
        >>> gdn_cuda.commit_replay(pool, buffers, torch.tensor([1]), torch.tensor([1]))[:, 0, 0, 0]
        tensor([0., 6.])
    """
    name = "commit_replay"
    require_tensors(name, state_pool=state_pool)
    if isinstance(buffers, RingBuffers):
        commit_ring(state_pool, buffers, state_indices, num_accepted_tokens, state_scales, null_slot)
        return state_pool
    if not isinstance(buffers, ReplayBuffers):
        refuse(name, "buffers", _BUFFERS, type(buffers).__name__)
    if state_scales is not None:
        refuse(name, "state_scales", _NO_SCALES, type(state_scales).__name__)
    require_buffers(name, buffers, keys=5)
    require_tensors(name, num_accepted_tokens=num_accepted_tokens)
    assert num_accepted_tokens is not None
    require_rank(name, "state_pool", state_pool, 4)
    require_rank(name, "num_accepted_tokens", num_accepted_tokens, 1)
    keys = buffers.keys
    sequences, (heads, dv, dk) = num_accepted_tokens.shape[0], state_pool.shape[1:]
    rows, values, betas = (keys.new_empty(sequences, 0, *sizes) for sizes in ((keys.shape[3], dk), (heads, dv), (heads,)))
    gates = keys.new_empty(sequences, 0, heads, dk) if buffers.decays.dim() == 5 else betas
    per_head = buffers.decays.new_empty(heads)
    _decode_for_commit(
        *(rows, rows, values, gates, betas, per_head, None, state_pool, *buffers, state_indices),
        num_accepted_tokens=num_accepted_tokens,
        null_slot=null_slot,
    )
    return state_pool


typical_call(
    replay_decode,
    {"B": 64, "T": 4, "Hk": 16, "Hv": 32, "dk": 128, "dv": 128, "slots": 1024, "S": 4, "two": 2},
    "query, key: B T Hk dk; value: B T Hv dv; a, b: B T Hv; A_log, dt_bias: Hv f32; state_pool: slots Hv dv dk f32; "
    "keys: slots two S Hk dk; updates: slots S Hv dv f32; decays: slots two S Hv f32; banks: slots Hv dv/8 f32; "
    "state_indices, num_accepted_tokens: B i32",
)
