"""Mamba-2's decode from states that lack the last tokens: the operator, its buffers, and its reference."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..gdn.reference import decayed, promoted_dtype
from ..gdn.state_codes import decode, store_states
from ..operators.autograd import keep_autograd_out, with_autograd
from ..operators.caller import in_words_of_caller
from ..operators.calls import typical_call
from ..operators.declare import output_like
from ..operators.registration import register
from ..operators.ring import MOST_ENTRIES, check_pool, committed, names_of, new_buffers, require_buffers, sequences_of, settle
from ..operators.schema import refuse, require_tensors
from .reference import Scan, Steps, finished

_NAME = "ssd_replay_decode"


class SsdReplayBuffers(NamedTuple):
    """What `ssd_replay_decode` stores beside a pool of states: for every slot a ring of tokens, and how many of them the state
    lacks. `ssd_replay_buffers` makes them."""

    x_ring: Tensor
    B_ring: Tensor
    delta_ring: Tensor
    pending: Tensor


def ssd_replay_buffers(
    state_pool: Tensor, window: int, groups: int, *, dtype: torch.dtype = torch.bfloat16
) -> SsdReplayBuffers:
    """Buffers for `ssd_replay_decode` on a pool, with no tokens in them.

    Formula:
        bytes of a slot = window · ((H · P + G · N) · size of dtype + 4 · H) + 4

    Shapes:
        state_pool: (slots, H, P, N)
        window: W, 1 to 32: how many tokens a state may lack
        groups: G
        dtype: of x, B and C
        x_ring: (slots, W, H, P), dtype; B_ring: (slots, W, G, N), dtype; delta_ring: (slots, W, H), fp32, or fp64 with a dtype
          of fp64
        pending: (slots,), int32

    A pool of int8 has scales beside it too: state_scales of `ssd_replay_decode`.

    Edge cases:
        A slot that is given to another sequence needs pending[slot] = 0, and nothing else of it cleared.

    Example:
        >>> buffers = gdn_cuda.ssd_replay_buffers(torch.zeros(5, 4, 16, 32), window=16, groups=2)
        >>> buffers.x_ring.shape, buffers.B_ring.shape, buffers.delta_ring.shape, buffers.pending.shape
        (torch.Size([5, 16, 4, 16]), torch.Size([5, 16, 2, 32]), torch.Size([5, 16, 4]), torch.Size([5]))
    """
    slots, heads, channels, states = check_pool(
        "ssd_replay_buffers", state_pool, "(slots, H, P, N)", ("window", window, MOST_ENTRIES), ("groups", groups)
    )
    return new_buffers(
        SsdReplayBuffers,
        "ssd_replay_buffers",
        state_pool,
        x_ring=((slots, window, heads, channels), dtype),
        B_ring=((slots, window, groups, states), dtype),
        delta_ring=((slots, window, heads), torch.float64 if dtype == torch.float64 else torch.float32),
        pending=((slots,), torch.int32),
    )


# ---- The reference: the literal recurrence over the ring's tokens and the new ones


def _decode(x: Any) -> None:
    """States are rounded when they are written, never between tokens."""
    pool, scales = x.state_pool, x.state_scales
    dtype = promoted_dtype(x.x, x.dt, x.A, x.B, x.C, x.delta_ring, *([pool] if scales is None else []))
    A, B, C, D, z, bias, rows, raw = (
        None if y is None else y.to(dtype) for y in (x.A, x.B, x.C, x.D, x.z, x.dt_bias, x.x, x.dt)
    )
    assert A is not None and B is not None and C is not None and rows is not None and raw is not None
    delta = Steps(x.dt_softplus, (x.dt_lowest, x.dt_highest))(raw, bias)
    heads = rows.shape[-2]

    def by_head(y: Tensor) -> Tensor:
        return y.repeat_interleave(heads // y.shape[0], 0)

    def advanced(state: Tensor, step: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return decayed(state, (step * A).exp()[:, None, None]) + (step[:, None] * row)[..., None] * by_head(column)[:, None]

    sequences, y = sequences_of(_NAME, x, x.x, x.x_ring.shape[1]), torch.zeros_like(rows)
    for sequence in sequences:
        slot = sequence.slot
        state = pool[slot].to(dtype) if scales is None else decode(pool[slot], scales[slot], dtype)
        for j in range(sequence.stored):
            state = advanced(state, *(part[slot, j].to(dtype) for part in (x.delta_ring, x.x_ring, x.B_ring)))
        accepted = state
        for at in sequence.tokens:
            state = advanced(state, delta[at], rows[at], B[at])
            y[at] = (state @ by_head(C[at])[..., None])[..., 0]
        new = ((x.x_ring, x.x), (x.B_ring, x.B), (x.delta_ring, delta))
        rings = ((ring, [each[at] for at in sequence.tokens]) for ring, each in new)
        settle(x, sequence, partial(store_states, pool, scales, (slot,)), accepted, state, *rings)
    y = finished(Scan(rows, raw, A, B, C, D, z), y)
    x.out.zero_()
    for sequence in sequences:
        for at in sequence.tokens:
            x.out[at] = y[at]


_schema = register(_NAME, cpu=_decode, differentiable="gdn_cuda.ssd_scan")
keep_autograd_out(_schema)


# ---- The functions


def ssd_replay_decode(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state_pool: Tensor,
    x_ring: Tensor,
    B_ring: Tensor,
    delta_ring: Tensor,
    pending: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    state_indices: Tensor | None = None,
    *,
    cu_seqlens: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    fold_mask: Tensor | None = None,
    state_scales: Tensor | None = None,
    null_slot: int | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    fold: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Mamba-2's decode that reads a state in every call and writes it when a ring of tokens is full. Returns the output.

    Formula:
        δ = clamp(softplus(dt + dt_bias), dt_limit)        S: the state of the slot, then the ring's tokens, then the new ones:
        S ← exp(δ A) S + δ x Bᵀ        y = S C + D ⊙ x        out = y · silu(z)

    Shapes:
        x, z, out: (B, T, H, P), or packed (N, H, P) with cu_seqlens; bf16, fp16 or fp32, P a multiple of 8, T up to 16
        dt: (B, T, H), any float dtype
        A, dt_bias: (H,); fp32, bf16 or fp16
        B, C: (B, T, G, N), the dtype of x, N a multiple of 8 up to 256; head h reads group h // (H/G)
        D: (H,) or (H, P); fp32, bf16 or fp16
        state_pool: (slots, H, P, N), fp32, bf16, fp16, or int8 with N a multiple of 32 and x in bf16 or fp16: each slot
          contiguous, any stride between slots
        state_scales: (slots, H, P, N / 32), fp32, of a pool of int8 codes: a state is its code times the scale of its 32
          columns; written as the pool is
        x_ring: (slots, W, H, P); B_ring: (slots, W, G, N), both of the dtype of x; delta_ring: (slots, W, H), fp32: x, B and
          δ of tokens, W from 1 to 32. Any strides but the last of x_ring and B_ring
        pending: (slots,), int32: how many tokens of the ring the state lacks; these four are made by `ssd_replay_buffers`
        state_indices: (B,), int32 or int64; None: sequence n has slot n
        num_accepted_tokens: (B,), int32 or int64: how many tokens of the last call on the slot are accepted. None: every token
          is accepted as it comes
        cu_seqlens: (B + 1,), int32 or int64: where packed sequences begin, and where the last one ends
        fold_mask: (B,), bool: for which sequences the state takes every accepted token

    Parameters:
        null_slot: a slot that means padding, as negative ones do; None: only negative ones do
        dt_softplus, dt_limit: as in `ssd_scan`
        fold: whether every state takes every accepted token, so that prefill or another call can read it

    Pointers and strides of the pool, x_ring, B_ring and slots' scales are multiples of 16 bytes. CPU tensors may be fp64, with
    fp64 buffers.

    Without num_accepted_tokens, new tokens go to the ring, and `pending` counts them. Where it has no room for them, the state
    takes the ring's and the new tokens, is written, and the ring is empty: of W + 1 calls with one token each one writes. With
    num_accepted_tokens (speculative verify), the new tokens go to the ring after the pending ones, the next call counts as many
    of them as are accepted, and tokens that are not accepted are overwritten. Where there is no room, the state takes the
    accepted tokens alone. T is at most W then.

    Safe under CUDA-graph capture once its kernel is loaded (`gdn_cuda.warmup`). No gradients: `ssd_scan` has them.

    Edge cases:
        A slot that is negative or equal to `null_slot` skips the sequence: its output is zero, and no slot is read or written.
        A slot past the pool, more pending and accepted tokens than W, or a packed sequence of more than 16 tokens (with
          num_accepted_tokens, of more than W) raises IndexError on CPU tensors, which take packed sequences of any length; on a
          GPU the output of the sequence is NaN, and nothing else is written. A negative count is 0.
        δA below −104 is an exact reset: nothing of before remains, neither infinities nor NaN; nor where the decay over several
          tokens is 0 in fp32, on a GPU.
        Tokens of the ring that are not pending or accepted are not read: they may be NaN.
        Without new tokens, accepted ones become pending. After a call without num_accepted_tokens nothing is left to accept:
          the next one has none, or 0.
        Before a slot's first call, and when prefill writes its state, pending[slot] is 0.
        The state is rounded where it is written, and tokens of the ring are not: with a pool in 16 bits results are nearer to
          fp32 ones than those of a step in place. With int8, W = 16 has 1.21 times the error of bf16 in place, 8 has 1.58;
          it saves memory, not time: on an H200 1.1 times as long as with bf16.
        Written to int8, infinities become the largest value that codes have, and a NaN makes its 32 columns NaN.
        Two sequences on one slot race.

    Example:
        >>> x, dt = torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2)
        >>> B = torch.ones(1, 1, 1, 8)
        >>> pool = torch.zeros(4, 2, 8, 8)
        >>> buffers = gdn_cuda.ssd_replay_buffers(pool, window=2, groups=1, dtype=torch.float32)
        >>> slot = {"state_indices": torch.tensor([3])}
        >>> step = lambda: gdn_cuda.ssd_replay_decode(x, dt, -torch.ones(2), B, B, pool, *buffers, **slot)
        >>> [(round(float(step()[0, 0, 0, 0]), 3), int(buffers.pending[3]), bool(pool.any())) for _ in range(3)]
        [(8.0, 1, False), (10.943, 2, False), (12.026, 0, True)]
    """
    found = output_like(_NAME, "x", x) if out is None else out
    required = (x, dt, A, B, C, state_pool, x_ring, B_ring, delta_ring, pending, float(dt_limit[0]), float(dt_limit[1]), found)
    others = (dt_softplus, D, z, dt_bias, state_indices, cu_seqlens, num_accepted_tokens, fold_mask)
    with_autograd(_schema, (*required, *others, state_scales, null_slot, fold))
    return found


_commit = in_words_of_caller(
    "ssd_commit_replay", **names_of(SsdReplayBuffers, "buffers"), x="buffers.x_ring", B="buffers.B_ring"
)(ssd_replay_decode)


def ssd_commit_replay(
    state_pool: Tensor,
    buffers: SsdReplayBuffers,
    A: Tensor,
    state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    *,
    state_scales: Tensor | None = None,
    null_slot: int | None = None,
) -> Tensor:
    """Adds the ring's accepted tokens to states, so that prefill can read these. Returns the pool.

    Formula:
        S ← exp(δ A) S + δ x Bᵀ for each pending token of the ring, and each accepted one of the last call

    Shapes:
        state_pool, A, state_indices, num_accepted_tokens, state_scales: as in `ssd_replay_decode`; without state_indices and
          num_accepted_tokens, all slots

    Parameters:
        buffers: from `ssd_replay_buffers` for the pool
        null_slot: as in `ssd_replay_decode`

    Edge cases:
        Slots and counts out of range are treated as in `ssd_replay_decode`; there is no output.
        Afterwards nothing is pending, and the next call has num_accepted_tokens 0. A state that lacks no token is not written.

    Example:
        >>> pool = torch.zeros(2, 1, 8, 8)
        >>> buffers = gdn_cuda.ssd_replay_buffers(pool, window=1, groups=1, dtype=torch.float32)
        >>> buffers.x_ring[1], buffers.B_ring[1], buffers.delta_ring[1], buffers.pending[1] = 2, 3, 0.5, 1
        >>> gdn_cuda.ssd_commit_replay(pool, buffers, -torch.ones(1))[:, 0, 0, 0], buffers.pending
        (tensor([0., 3.]), tensor([0, 0], dtype=torch.int32))
    """
    name = "ssd_commit_replay"
    require_tensors(name, state_pool=state_pool, A=A)
    if not isinstance(buffers, SsdReplayBuffers):
        refuse(name, "buffers", "SsdReplayBuffers, which ssd_replay_buffers makes", type(buffers).__name__)
    require_buffers(name, buffers, x_ring=4, B_ring=4)
    sequences = committed(name, state_pool, state_indices, num_accepted_tokens)
    rows, columns = (ring.new_empty(sequences, 0, *ring.shape[2:]) for ring in (buffers.x_ring, buffers.B_ring))
    _commit(
        *(rows, rows[..., 0], A, columns, columns, state_pool, *buffers),
        state_indices=state_indices,
        num_accepted_tokens=num_accepted_tokens,
        state_scales=state_scales,
        null_slot=null_slot,
        fold=True,
    )
    return state_pool


typical_call(
    ssd_replay_decode,
    {"B": 64, "T": 1, "H": 128, "P": 64, "G": 8, "N": 128, "W": 16, "slots": 1024},
    "x: B T H P; dt: B T H; A, dt_bias, D: H f32; B, C: B T G N; state_pool: slots H P N f32; x_ring: slots W H P; "
    "B_ring: slots W G N; delta_ring: slots W H f32; pending: slots i32; state_indices: B i32; dt_softplus = true",
)
