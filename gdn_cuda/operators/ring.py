"""Rings of tokens that the states in a pool lack, for operators of any family: their buffers, what a call does with them in
plain torch, and commits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .result_size import check_result_size
from .schema import refuse, require_tensor, require_tensors
from .state_slots import check_slots, is_slot

MOST_ENTRIES = 32


# ---- Buffers: named tuples of tensors beside a pool


Buffers = TypeVar("Buffers")


def check_pool(name: str, state_pool: Tensor, layout: str, room: tuple[str, int, int], heads: tuple[str, int]) -> torch.Size:
    """`room`: an argument, its value, and the most it may be; `heads`: an argument that divides the pool's heads."""
    require_tensor(name, "state_pool", state_pool)
    if state_pool.dim() != 4:
        refuse(name, "state_pool", f"rank 4 {layout}", str(tuple(state_pool.shape)))
    argument, entries, most = room
    if not 1 <= entries <= most:
        refuse(name, argument, f"1 to {most}", str(entries))
    argument, count = heads
    if count < 1 or state_pool.shape[1] % count:
        refuse(name, argument, f"a divisor of the pool's {state_pool.shape[1]} heads", str(count))
    return state_pool.shape


def new_buffers(
    kind: Callable[..., Buffers], name: str, state_pool: Tensor, **layouts: tuple[tuple[int, ...], torch.dtype]
) -> Buffers:
    device = state_pool.device
    for shape, dtype in layouts.values():
        check_result_size(name, "state_pool", shape, dtype, device)
    return kind(**{part: torch.zeros(shape, dtype=dtype, device=device) for part, (shape, dtype) in layouts.items()})


def names_of(buffers: tuple[Tensor, ...] | type[tuple[Tensor, ...]], argument: str) -> dict[str, str]:
    """The names in error messages of a function whose one argument has all buffers."""
    return {name: f"{argument}.{name}" for name in buffers._fields}  # type: ignore[union-attr]


def require_buffers(name: str, buffers: tuple[Tensor, ...], **ranks: int) -> None:
    """Before a commit. `ranks`: dimensions of buffers that it reads shapes of."""
    require_tensors(name, **{shown: getattr(buffers, part) for part, shown in names_of(buffers, "buffers").items()})
    for part, rank in ranks.items():
        require_rank(name, f"buffers.{part}", getattr(buffers, part), rank)


def require_rank(name: str, argument: str, x: Tensor, rank: int) -> None:
    if x.dim() != rank:
        refuse(name, argument, f"rank {rank}", str(tuple(x.shape)))


def committed(name: str, state_pool: Tensor, state_indices: Tensor | None, num_accepted_tokens: Tensor | None) -> int:
    """How many sequences a commit has: one a slot where neither of the last two is given."""
    like = state_pool if state_indices is None and num_accepted_tokens is None else state_indices
    like = num_accepted_tokens if like is None else like
    require_tensors(name, state_indices=like)
    assert like is not None
    if like.dim() < 1:
        refuse(name, "state_indices", "(sequences,), a slot each", str(tuple(like.shape)))
    return like.shape[0]


# ---- References


class Sequence(NamedTuple):
    slot: int
    stored: int  # tokens of the ring that count
    tokens: list[tuple[int, ...]]  # indices of the new tokens
    asked: bool  # to write the state


def _tokens(rows: Tensor, cu_seqlens: Tensor | None) -> list[list[tuple[int, ...]]]:
    """The indices of every sequence's tokens."""
    if cu_seqlens is None:
        return [[(n, t) for t in range(rows.shape[1])] for n in range(rows.shape[0])]
    return [[(t,) for t in range(first, end)] for first, end in pairwise(cu_seqlens.tolist())]


def sequences_of(name: str, x: Any, rows: Tensor, entries: int) -> list[Sequence]:
    """The sequences of a call that are computed. Slots and counts out of range are refused. `rows`: (B, T, …), or packed."""
    tokens = _tokens(rows, x.cu_seqlens)
    slots = torch.arange(len(tokens)) if x.state_indices is None else x.state_indices.to(torch.int64)
    check_slots(name, "state_indices", slots, x.state_pool.shape[0], x.null_slot)
    accepted = [0] * len(tokens) if x.num_accepted_tokens is None else x.num_accepted_tokens.clamp(min=0).tolist()
    found = []
    for n in torch.where(is_slot(slots, x.null_slot))[0].tolist():
        slot, length = int(slots[n]), len(tokens[n])
        before = int(x.pending[slot])
        if not 0 <= before <= entries:
            raise IndexError(f"{name}: pending: expected 0 to {entries}, got {before}")
        if before + accepted[n] > entries:
            expected = f"<= {entries - before} beside {before} pending tokens"
            raise IndexError(f"{name}: num_accepted_tokens: expected {expected}, got {accepted[n]}")
        if x.num_accepted_tokens is not None and length > entries:
            raise IndexError(f"{name}: cu_seqlens: expected sequences of at most {entries} tokens, got {length}")
        asked = x.fold or (x.fold_mask is not None and bool(x.fold_mask[n]))
        found.append(Sequence(slot, before + accepted[n], tokens[n], asked))
    return found


def settle(
    x: Any,
    sequence: Sequence,
    write: Callable[[Tensor], None],
    accepted: Tensor,
    state: Tensor,
    *rings: tuple[Tensor, Iterable[Tensor]],
) -> None:
    """After a sequence's tokens. `write`: stores a state, that with the `accepted` tokens or `state`, with the new ones too;
    `rings`: each tensor of the ring, and what it gets of each new token."""
    verifies, slot, stored = x.num_accepted_tokens is not None, sequence.slot, sequence.stored
    count, entries = len(sequence.tokens), rings[0][0].shape[1]
    pending = stored if verifies else stored + count
    folds = pending > 0 and (sequence.asked or stored + count > entries)
    if folds:
        write(accepted if verifies else state)
    if verifies or not folds:
        for ring, rows in rings:
            for entry, row in enumerate(rows, 0 if folds else stored):
                ring[slot, entry] = row
    x.pending[slot] = 0 if folds else pending
