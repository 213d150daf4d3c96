"""Decode from states that lack the last tokens: the operator, its buffers and its reference."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators import operator
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.ring import (
    MOST_ENTRIES,
    check_pool,
    committed,
    names_of,
    new_buffers,
    require_buffers,
    require_rank,
    sequences_of,
    settle,
)
from . import reference as gdn
from .reference_operators import _packed, raw_gates_of_call
from .state_codes import decode, store_states

_NAME = "ring_decode"


class RingBuffers(NamedTuple):
    """What `ring_decode` stores beside a pool of states: for every slot a ring of tokens, and how many of them the state lacks.
    `ring_buffers` makes them."""

    keys: Tensor
    updates: Tensor
    decays: Tensor
    pending: Tensor


def ring_buffers(state_pool: Tensor, window: int, heads_k: int, *, dtype: torch.dtype = torch.bfloat16) -> RingBuffers:
    """Buffers for `ring_decode` and `fused_decode(…, replay=buffers)` on a pool, with no tokens in them.

    Formula:
        bytes of a slot = window · (Hk · dk · size of dtype + Hv · dv · size of dtype of updates + 4 · Hv) + 4

    Shapes:
        state_pool: (slots, Hv, dv, dk)
        window: W, 1 to 32: how many tokens a state may lack
        heads_k: Hk
        dtype: of query and key
        keys: (slots, W, Hk, dk), dtype; updates: (slots, W, Hv, dv), fp32 with a pool of fp32, else dtype; decays: (slots, W,
          Hv), fp32, or fp64 with a dtype of fp64
        pending: (slots,), int32

    A pool of int8 has scales beside it too: state_scales of `ring_decode`.

    Edge cases:
        A slot that is given to another sequence needs pending[slot] = 0, and nothing else of it cleared.

    Example:
        >>> buffers = gdn_cuda.ring_buffers(torch.zeros(5, 4, 16, 32), window=8, heads_k=2)
        >>> buffers.keys.shape, buffers.updates.shape, buffers.decays.shape, buffers.pending.shape
        (torch.Size([5, 8, 2, 32]), torch.Size([5, 8, 4, 16]), torch.Size([5, 8, 4]), torch.Size([5]))
    """
    slots, heads, dv, dk = check_pool(
        "ring_buffers", state_pool, "(slots, Hv, dv, dk)", ("window", window, MOST_ENTRIES), ("heads_k", heads_k)
    )
    return new_buffers(
        RingBuffers,
        "ring_buffers",
        state_pool,
        keys=((slots, window, heads_k, dk), dtype),
        updates=((slots, window, heads, dv), torch.float32 if state_pool.dtype == torch.float32 else dtype),
        decays=((slots, window, heads), torch.float64 if dtype == torch.float64 else torch.float32),
        pending=((slots,), torch.int32),
    )


# ---- The reference: the literal recurrence over the ring's tokens and the new ones


def _reference(x: Any) -> Tensor:
    """States are rounded when they are written, and updates when they are stored, never between the tokens of one call."""
    output_shape = x.value.shape
    x = _packed(x, "query", "key", "value", "a", "b")
    pool = x.state_pool
    sequences = sequences_of(_NAME, x, x.value, x.keys.shape[1])
    dtype = gdn.promoted_dtype(x.query, x.key, x.value, x.updates, *([] if pool.dtype == torch.int8 else [pool]))
    scale = x.query.shape[-1] ** -0.5 if x.scale is None else x.scale
    beta, gate = (y.to(dtype) for y in raw_gates_of_call(x))
    decay, value, heads = gate.exp(), x.value.to(dtype), x.value.shape[-2]
    query, key = (gdn.repeat_heads(y.to(dtype), heads) for y in (x.query, x.key))
    query_scale, key_scale = (
        ((y * y).sum(-1, keepdim=True) + gdn.L2NORM_EPSILON).rsqrt() if x.use_qk_l2norm else torch.ones_like(y[..., :1])
        for y in (query, key)
    )

    def advanced(state: Tensor, by: Tensor, update: Tensor, along: Tensor) -> Tensor:
        return gdn.decayed(state, by[:, None, None]) + update[..., None] * along[:, None]

    output = torch.zeros_like(value)
    for sequence in sequences:
        slot = sequence.slot
        codes, scales = pool[slot], x.state_scales
        state = codes.to(dtype, copy=True) if scales is None else decode(codes, scales[slot], dtype)
        for j in range(sequence.stored):
            # These are copies because the ring is written again before a backward.
            along, update, by = (y[slot, j].to(dtype, copy=True) for y in (x.keys, x.updates, x.decays))
            state = advanced(state, by, update, gdn.repeat_heads(along, heads))
        accepted, updates = state, []
        for at in sequence.tokens:
            predicted = key_scale[at] * (gdn.decayed(state, decay[at][:, None, None]) @ key[at][..., None]).squeeze(-1)
            updates.append(key_scale[at] * beta[at][:, None] * (value[at] - predicted))
            state = advanced(state, decay[at], updates[-1], key[at])
            output[at] = scale * query_scale[at] * (state @ query[at][..., None]).squeeze(-1)
        keys, decays = ([y[at] for at in sequence.tokens] for y in (x.key, decay))
        rings = ((x.keys, keys), (x.updates, updates), (x.decays, decays))
        settle(x, sequence, partial(store_states, pool, scales, (slot,)), accepted, state, *rings)
    return output.to(x.value.dtype).view(output_shape)


@operator(reference=_reference, out="value")
def ring_decode(
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
    pending: Tensor,
    state_indices: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    fold_mask: Tensor | None = None,
    state_scales: Tensor | None = None,
    null_slot: int | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool = True,
    allow_negative_eigenvalues: bool = False,
    lower_bound: float | None = None,
    fold: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Decode that reads a state in every call and writes it when a ring of tokens is full: `fused_decode(…,
    replay=RingBuffers(keys, …, pending))`. Returns the output.

    Formula:
        S: the state of the slot; for each token of the ring that counts S ← decay·S + update kᵀ; for each new token, as in
        fused_decode: S ← exp(gate)·S, v' = beta·(v − S k), S ← S + v' kᵀ, output = scale · S q, and the ring gets key,
        decay = exp(gate) and update = v' / √(Σ key² + 1e-6)

    Shapes:
        query, key, value, a, b, A_log, dt_bias, scale: as in `fused_decode`, with a gate for each head; query, key and value
          are bf16 or fp16 (on the CPU fp64 too, with a ring of fp64), with contiguous rows of multiples of 8, query has no more
          heads than value, and T is at most 16
        state_pool: (slots, Hv, dv, dk), fp32, bf16, fp16, or int8 with dk a multiple of 32: each slot contiguous, any stride
          between slots
        state_scales: (slots, Hv, dv, dk / 32), fp32, of a pool of int8 codes: a state is its code times the scale of its 32
          columns; written as the pool is
        keys: (slots, W, Hk, dk), the dtype of query; updates: (slots, W, Hv, dv), fp32 with a pool of fp32, else the dtype of
          query; decays: (slots, W, Hv), fp32; W is 1 to 32. Any strides but the last of keys and updates
        pending: (slots,), int32: how many tokens of the ring the state lacks; these four are made by `ring_buffers`
        state_indices: (B,), int32 or int64; None: sequence n has slot n
        num_accepted_tokens: (B,), int32 or int64: how many tokens of the last call on the slot are accepted. None: every token
          is accepted as it comes
        cu_seqlens: (B + 1,), int32 or int64: where packed sequences begin, and where the last one ends
        fold_mask: (B,), bool: for which sequences the state takes every accepted token

    Parameters:
        null_slot, use_qk_l2norm, allow_negative_eigenvalues, out: as in `fused_decode`
        lower_bound: None; it is for gates of channels, which are refused
        fold: whether every state takes every accepted token, so that prefill or another call can read it

    Pointers and strides of the pool, keys, updates and slots' scales are multiples of 16 bytes.

    Without num_accepted_tokens, new tokens go to the ring, and `pending` counts them. Where it has no room for them, the state
    takes the ring's and the new tokens, is written, and the ring is empty: of W + 1 calls with one token each one writes. With
    num_accepted_tokens (speculative verify), the new tokens go to the ring after the pending ones, the next call counts as many
    of them as are accepted, and tokens that are not accepted are overwritten. Where there is no room, the state takes the
    accepted tokens alone. T is at most W then.

    Safe under CUDA-graph capture once its kernel is loaded (`gdn_cuda.warmup`). No gradients.

    Edge cases:
        A slot that is negative or equal to `null_slot` skips the sequence: its output is zero, and no slot is read or written.
        A slot past the pool, more pending and accepted tokens than W, or a packed sequence of more than 16 tokens (with
          num_accepted_tokens, of more than W) raises IndexError on CPU tensors, which take packed sequences of any length; on a
          GPU the output of the sequence is NaN, and nothing else is written. A negative count is 0.
        A decay of 0 is an exact reset: nothing of before remains, neither infinities nor NaN; nor where the decay over several
          tokens is 0 in fp32, on a GPU.
        Tokens of the ring that are not pending or accepted are not read: they may be NaN.
        Without new tokens, accepted ones become pending. After a call without num_accepted_tokens nothing is left to accept:
          the next one has none, or 0.
        Before a slot's first call, and when prefill writes its state, pending[slot] is 0.
        The state is rounded where it is written, and updates where they are stored: with a pool in 16 bits results are nearer
          to fp32 ones than those of a step in place.
        Two sequences on one slot race.

    Example:
        >>> query, key, value = torch.ones(3, 1, 1, 2, 8).bfloat16()  # one sequence, one token, 2 heads
        >>> a, b = torch.zeros(2, 1, 1, 2).bfloat16()
        >>> pool = torch.zeros(4, 2, 8, 8)
        >>> buffers = gdn_cuda.ring_buffers(pool, window=2, heads_k=2)
        >>> slot = torch.tensor([3])
        >>> step = lambda: gdn_cuda.ring_decode(query, key, value, a, b, torch.zeros(2), None, pool, *buffers, slot)
        >>> [(round(float(step()[0, 0, 0, 0]), 3), int(buffers.pending[3]), bool(pool.any())) for _ in range(3)]
        [(0.177, 1, False), (0.221, 2, False), (0.232, 0, True)]
    """


# ---- fused_decode(…, replay=buffers)


_decode_for_fused_decode = in_words_of_caller("fused_decode", **names_of(RingBuffers, "replay"))(ring_decode)
_decode_for_commit = in_words_of_caller(
    "commit_replay", **names_of(RingBuffers, "buffers"), query="buffers.keys", value="state_pool"
)(ring_decode)


def decode_by_ring(ring: RingBuffers, **given: Any) -> Tensor:
    """`given`: the arguments of ring_decode that are not buffers."""
    return _decode_for_fused_decode(**given, **ring._asdict())


def reference_by_ring(x: Any) -> Tensor:
    options = {"state_scales": None, "fold": False, "fold_mask": None}
    return _reference(SimpleNamespace(**options | vars(x) | x.replay._asdict()))


def commit_ring(
    state_pool: Tensor,
    buffers: RingBuffers,
    state_indices: Tensor | None,
    num_accepted_tokens: Tensor | None,
    state_scales: Tensor | None,
    null_slot: int | None,
) -> None:
    """commit_replay for a ring."""
    name, keys = "commit_replay", buffers.keys
    require_rank(name, "state_pool", state_pool, 4)
    require_buffers(name, buffers, keys=4)
    sequences = committed(name, state_pool, state_indices, num_accepted_tokens)
    heads, dv, dk = state_pool.shape[1:]
    rows, values, gates = (keys.new_empty(sequences, 0, *sizes) for sizes in ((keys.shape[2], dk), (heads, dv), (heads,)))
    _decode_for_commit(
        *(rows, rows, values, gates, gates, buffers.decays.new_empty(heads), None, state_pool, *buffers, state_indices),
        num_accepted_tokens=num_accepted_tokens,
        state_scales=state_scales,
        null_slot=null_slot,
        fold=True,
    )


typical_call(
    ring_decode,
    {"B": 64, "T": 1, "Hk": 16, "Hv": 32, "dk": 128, "dv": 128, "slots": 1024, "W": 8},
    "query, key: B T Hk dk; value: B T Hv dv; a, b: B T Hv; A_log, dt_bias: Hv f32; state_pool: slots Hv dv dk; "
    "keys: slots W Hk dk; updates: slots W Hv dv; decays: slots W Hv f32; pending: slots i32; state_indices: B i32",
)
