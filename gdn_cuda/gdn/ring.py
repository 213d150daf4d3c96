"""Decode from states that lack the last tokens: the operator, its buffers and its reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators import operator
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.result_size import check_result_size
from ..operators.schema import refuse, require_tensor, require_tensors
from ..operators.state_slots import check_slots, is_slot
from . import reference as gdn
from .reference_operators import _packed, _zero_inactive, lengths_of, raw_gates_of_call
from .state_codes import decode, store_states

MOST_ENTRIES = 32
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
    name = "ring_buffers"
    require_tensor(name, "state_pool", state_pool)
    if state_pool.dim() != 4:
        refuse(name, "state_pool", "rank 4 (slots, Hv, dv, dk)", str(tuple(state_pool.shape)))
    if not 1 <= window <= MOST_ENTRIES:
        refuse(name, "window", f"1 to {MOST_ENTRIES}", str(window))
    slots, heads, dv, dk = state_pool.shape
    if heads_k < 1 or heads % heads_k:
        refuse(name, "heads_k", f"a divisor of the pool's {heads} heads", str(heads_k))
    layouts = {
        "keys": ((slots, window, heads_k, dk), dtype),
        "updates": ((slots, window, heads, dv), torch.float32 if state_pool.dtype == torch.float32 else dtype),
        "decays": ((slots, window, heads), torch.float64 if dtype == torch.float64 else torch.float32),
        "pending": ((slots,), torch.int32),
    }
    for shape, each in layouts.values():
        check_result_size(name, "state_pool", shape, each, state_pool.device)
    return RingBuffers(
        **{part: torch.zeros(shape, dtype=each, device=state_pool.device) for part, (shape, each) in layouts.items()}
    )


# ---- The reference: the literal recurrence over the ring's tokens and the new ones


class _Sequence(NamedTuple):
    slot: int
    stored: int  # tokens of the ring that count
    tokens: list[tuple[int, ...]]  # indices of the new tokens
    asked: bool  # to write the state


def _sequences(x: Any, slots: Tensor, active: Tensor) -> list[_Sequence]:
    """The sequences that are computed. Counts out of range are refused."""
    lengths, entries = lengths_of(x.value, x.cu_seqlens).tolist(), x.keys.shape[1]
    firsts = [0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()]
    accepted = [0] * len(lengths) if x.num_accepted_tokens is None else x.num_accepted_tokens.clamp(min=0).tolist()
    found = []
    for n in torch.where(active)[0].tolist():
        slot, length = int(slots[n]), lengths[n]
        before = int(x.pending[slot])
        if not 0 <= before <= entries:
            raise IndexError(f"{_NAME}: pending: expected 0 to {entries}, got {before}")
        if before + accepted[n] > entries:
            expected = f"<= {entries - before} beside {before} pending tokens"
            raise IndexError(f"{_NAME}: num_accepted_tokens: expected {expected}, got {accepted[n]}")
        if x.num_accepted_tokens is not None and length > entries:
            raise IndexError(f"{_NAME}: cu_seqlens: expected sequences of at most {entries} tokens, got {length}")
        tokens: list[tuple[int, ...]] = [(n, t) if x.cu_seqlens is None else (firsts[n] + t,) for t in range(length)]
        asked = x.fold or (x.fold_mask is not None and bool(x.fold_mask[n]))
        found.append(_Sequence(slot, before + accepted[n], tokens, asked))
    return found


def _reference(x: Any) -> Tensor:
    """States are rounded when they are written, and updates when they are stored, never between the tokens of one call."""
    output_shape = x.value.shape
    x = _packed(x, "query", "key", "value", "a", "b")
    pool, entries, verifies = x.state_pool, x.keys.shape[1], x.num_accepted_tokens is not None
    sequences = lengths_of(x.value, x.cu_seqlens).shape[0]
    slots = torch.arange(sequences) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots(_NAME, "state_indices", slots, pool.shape[0], x.null_slot)
    active = is_slot(slots, x.null_slot)
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
    for slot, stored, tokens, asked in _sequences(x, slots, active):
        codes, scales = pool[slot], x.state_scales
        state = codes.to(dtype, copy=True) if scales is None else decode(codes, scales[slot], dtype)
        for j in range(stored):
            # These are copies because the ring is written again before a backward.
            along, update, by = (y[slot, j].to(dtype, copy=True) for y in (x.keys, x.updates, x.decays))
            state = advanced(state, by, update, gdn.repeat_heads(along, heads))
        accepted, updates = state, []
        for at in tokens:
            predicted = key_scale[at] * (gdn.decayed(state, decay[at][:, None, None]) @ key[at][..., None]).squeeze(-1)
            updates.append(key_scale[at] * beta[at][:, None] * (value[at] - predicted))
            state = advanced(state, decay[at], updates[-1], key[at])
            output[at] = scale * query_scale[at] * (state @ query[at][..., None]).squeeze(-1)
        folds = (asked or stored + len(tokens) > entries) and (stored if verifies else stored + len(tokens)) > 0
        if folds:
            store_states(pool, x.state_scales, (slot,), accepted if verifies else state)
        first = 0 if folds else stored
        if verifies or not folds:
            for entry, (at, update) in enumerate(zip(tokens, updates, strict=True), first):
                x.keys[slot, entry], x.updates[slot, entry], x.decays[slot, entry] = x.key[at], update, decay[at]
        x.pending[slot] = first if verifies or folds else stored + len(tokens)
    return _zero_inactive(output.to(x.value.dtype), active, x.cu_seqlens).view(output_shape)


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


def _buffer_names(argument: str) -> dict[str, str]:
    """The names in error messages of a function whose one argument has all buffers."""
    return {name: f"{argument}.{name}" for name in RingBuffers._fields}


_decode_for_fused_decode = in_words_of_caller("fused_decode", **_buffer_names("replay"))(ring_decode)
_decode_for_commit = in_words_of_caller("commit_replay", **_buffer_names("buffers"), query="buffers.keys", value="state_pool")(
    ring_decode
)


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
    name, keys, pending = "commit_replay", buffers.keys, buffers.pending
    require_tensors(name, **{shown: getattr(buffers, part) for part, shown in _buffer_names("buffers").items()})
    for argument, x, rank in (("state_pool", state_pool, 4), ("buffers.keys", keys, 4), ("buffers.pending", pending, 1)):
        if x.dim() != rank:
            refuse(name, argument, f"rank {rank}", str(tuple(x.shape)))
    like = pending if state_indices is None and num_accepted_tokens is None else state_indices
    like = num_accepted_tokens if like is None else like
    require_tensors(name, state_indices=like)
    assert like is not None
    if like.dim() < 1:
        refuse(name, "state_indices", "(sequences,), a slot each", str(tuple(like.shape)))
    sequences, (heads, dv, dk) = like.shape[0], state_pool.shape[1:]
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
