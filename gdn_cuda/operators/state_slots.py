"""States in slots of a pool, on CPU tensors: the slot that a sequence starts from, and the slots that may be read and written.

The C++ operators check shapes and dtypes; values are checked here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def accepted_column(function: str, x: Any, sequences: int, columns: int, device: torch.device) -> Tensor:
    """max(accepted, 1) − 1 of a call as int64 (sequences,): the column where a verify left the state after the accepted
    tokens."""
    accepted = x.num_accepted_tokens
    if accepted is None:
        return torch.zeros(sequences, dtype=torch.int64, device=device)
    most = int(accepted.max()) if accepted.numel() else 0
    if most > columns:
        raise IndexError(f"{function}: num_accepted_tokens: expected <= {columns}, got {most}")
    return accepted.to(torch.int64).clamp(min=1) - 1


def starting_slots(function: str, x: Any, indices: Tensor) -> Tensor:
    """The slots that the sequences of a call start from; `indices`: (sequences,), or (sequences, T) for speculative verify."""
    if indices.dim() == 1:
        return indices
    column = accepted_column(function, x, indices.shape[0], indices.shape[1], indices.device)
    return indices[torch.arange(indices.shape[0], device=indices.device), column]


def check_slots(function: str, argument: str, indices: Tensor, slots: int, null_slot: int | None = None) -> None:
    beyond = indices[(indices >= slots) & (True if null_slot is None else indices != null_slot)]
    if beyond.numel():
        raise IndexError(f"{function}: {argument}: expected < {slots}, got {int(beyond[0])}")


def gather_states(pool: Tensor, slots: Tensor, active: Tensor) -> Tensor:
    """(N, …): the pool's states of the active sequences, zero for the others."""
    states = pool.new_zeros(slots.shape[0], *pool.shape[1:])
    states[active] = pool[slots[active]]
    return states


def is_slot(indices: Tensor, null_slot: int | None = None) -> Tensor:
    return (indices >= 0) & (True if null_slot is None else indices != null_slot)


def check_width(function: str, argument: str, lengths: Tensor, width: int) -> None:
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > width:
        raise IndexError(f"{function}: {argument}: expected room for {longest} tokens, got {width}")


def tokens_of(lengths: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each token of active sequences: its sequence, its position there, and its row among all tokens."""
    sequence = torch.arange(lengths.shape[0], device=lengths.device).repeat_interleave(lengths)
    row = torch.arange(sequence.shape[0], device=lengths.device)
    token = row - (lengths.cumsum(0) - lengths)[sequence]
    chosen = active[sequence]
    return sequence[chosen], token[chosen], row[chosen]


def tree_tokens(parents: Tensor, tokens: int, has_row: bool) -> Iterator[tuple[int, int, bool]]:
    """(token, parent, whether the parent's state is the latest) for the tokens of a tree that have a state, in order. Parent −1
    is the slot. `parents`: of one sequence. has_row: whether states are stored, so that branches can start from them."""
    latest, alive = -1, {-1}
    for t in range(tokens):
        parent = int(parents[t]) if t < parents.shape[0] else t
        if parent not in alive or (not has_row and parent not in (latest, -1)):
            continue
        yield t, parent, parent == latest
        alive.add(t)
        latest = t
