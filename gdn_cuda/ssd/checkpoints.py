"""States that a call reports at other tokens than the last: which rows are of which tokens, without reading the device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..operators.schema import refuse
from .spans import sequences_of

MODES = ("checkpoint_every", "checkpoint_offsets", "boundaries")


def reports(x: Any) -> bool:
    """Whether the call has one of MODES."""
    return bool(getattr(x, "checkpoint_every", 0)) or any(getattr(x, name, None) is not None for name in MODES[1:])


def row_count(x: Any) -> Any:
    """How many checkpoints a call has whose caller gave no tensor for them: as many as the tokens allow at most."""
    if x.boundaries is not None:
        return max(x.boundaries.shape[0] - 1, 0)
    if x.checkpoint_offsets is not None:
        return sequences_of(x)
    return (x.x.shape[0] if x.cu_seqlens is None else 1) * (x.x.shape[1] // x.checkpoint_every)


def refuse_wrong_modes(function: str, x: Any) -> None:
    """What the operators would refuse too, before a tensor of checkpoints is allocated."""
    every = x.checkpoint_every
    if isinstance(every, bool) or not isinstance(every, int) or every < 0 or every % 64:
        refuse(function, "checkpoint_every", "a multiple of 64", every)
    for name in ("checkpoint_offsets", "boundaries"):
        given = getattr(x, name)
        if given is not None and not (isinstance(given, Tensor) and given.dim() == 1):
            got = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            refuse(function, name, "a tensor with one dimension, or None", got)
    if reports(x) and x.seq_idx is not None:
        name = next(name for name in MODES if getattr(x, name) is not None and (name != MODES[0] or every))
        refuse(function, "seq_idx", f"None with {name}", "a tensor")


class Places(NamedTuple):
    """For each row the sequence, how many tokens of its batch row are before it, and what it holds without a sequence."""

    sequence: Tensor
    token: Tensor
    exists: Tensor
    otherwise: Tensor


def _offsets(x: Any) -> tuple[Tensor, Tensor]:
    """Where sequences start and end in their rows of the batch."""
    if x.cu_seqlens is not None:
        offsets = x.cu_seqlens.long()
        return offsets[:-1], offsets[1:]
    zeros = torch.zeros(x.x.shape[0], dtype=torch.int64, device=x.x.device)
    return zeros, zeros + x.x.shape[1]


def _every(x: Any, counts: Tensor, rows: int, shift: int) -> Places:
    """Sequences have so many rows, one after another."""
    starts, _ = _offsets(x)
    row, sums = torch.arange(rows, device=starts.device), counts.cumsum(0)
    sequence = torch.searchsorted(sums, row, right=True)
    exists = sequence < starts.shape[0]
    sequence = torch.where(exists, sequence, 0)
    token = starts[sequence] + (row - (sums - counts)[sequence] + shift) * x.checkpoint_every
    return Places(sequence, token, exists, torch.zeros_like(row))


def checkpoint_places(x: Any) -> Places:
    starts, ends = _offsets(x)
    if x.checkpoint_every:
        return _every(x, (ends - starts) // x.checkpoint_every, x.checkpoints.shape[0], 1)
    if x.checkpoint_offsets is not None:
        offsets, lengths = x.checkpoint_offsets.long(), ends - starts
        sequence = torch.arange(starts.shape[0], device=starts.device)
        otherwise = torch.where(offsets > lengths, math.nan, 0.0)
        return Places(sequence, starts + offsets, (offsets > 0) & (offsets <= lengths), otherwise)
    boundaries = x.boundaries[1:].long()
    exists = (boundaries > starts[:1]) & (boundaries <= ends[-1:])
    sequence = torch.where(exists, torch.searchsorted(ends, boundaries), 0)
    return Places(sequence, boundaries, exists, torch.zeros_like(boundaries))


def before_places(x: Any) -> Places:
    starts, ends = _offsets(x)
    return _every(x, (ends - starts + x.checkpoint_every - 1) // x.checkpoint_every, x.states_before.shape[0], 0)


def _without_slots(x: Any, places: Places) -> Places:
    """Rows of a sequence that is not computed are 0, or with a slot past the pool NaN."""
    if getattr(x, "state_indices", None) is None:
        return places
    slots = x.state_indices.long()[places.sequence]
    computed = (slots >= 0) & (slots < x.initial_state.shape[0])
    skipped = places.exists & ~computed
    otherwise = torch.where(skipped, torch.where(slots < 0, 0.0, math.nan), places.otherwise)
    return places._replace(exists=places.exists & computed, otherwise=otherwise)


def reported(x: Any) -> list[tuple[Tensor, Places]]:
    """The tensors that a call writes, and their rows' places."""
    if not reports(x):
        return []
    given = [(x.checkpoints, checkpoint_places), (x.states_before, before_places)]
    if sequences_of(x) == 0:
        for rows, _ in given:
            if rows is not None:
                rows.zero_()
        return []
    return [(rows, _without_slots(x, places(x))) for rows, places in given if rows is not None]


def write_rows(rows: Tensor, places: Places, states: Tensor) -> None:
    """`states`: of each row, of any value where it has no place."""
    exists, otherwise = (y[:, None, None, None] for y in (places.exists, places.otherwise))
    rows.copy_(torch.where(exists, states, otherwise.to(states.dtype)))
