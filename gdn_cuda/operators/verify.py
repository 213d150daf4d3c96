"""Arguments of speculative verify for examples, benchmarks and sanitizer calls: a slot for the state after each token, and how
many tokens of the last call are accepted. `indices`: the operator's name for its slots."""

from __future__ import annotations

import torch

from .hostile import hostile_indices
from .measure import Inputs


def counts(sequences: int, columns: int, dtype: torch.dtype = torch.int32) -> Inputs:
    """All counts from 0, which counts as 1, to `columns`."""
    return {"num_accepted_tokens": torch.arange(sequences, dtype=dtype) % (columns + 1)}


def slots_and_counts(sequences: int, width: int, indices: str = "state_indices", dtype: torch.dtype = torch.int32) -> Inputs:
    """All slots but the first, in order."""
    slots = torch.arange(sequences * width, dtype=dtype).view(sequences, width) + 1
    return {indices: slots} | counts(sequences, width, dtype)


def measured_counts(device: str, sequences: int, count: int = 1) -> Inputs:
    return {"num_accepted_tokens": torch.full((sequences,), count, device=device, dtype=torch.int32)}


def measured(device: str, sequences: int, tokens: int) -> Inputs:
    """The slots of a pool in a random order."""
    slots = torch.randperm(sequences * tokens, device=device, dtype=torch.int32)
    return {"state_indices": slots.view(sequences, tokens)} | measured_counts(device, sequences)


def hostile_counts(sequences: int) -> Inputs:
    return {"num_accepted_tokens": hostile_indices(sequences)}


def hostile(sequences: int, tokens: int, indices: str = "state_indices") -> Inputs:
    """Slots and counts, most of them invalid."""
    return {indices: hostile_indices(sequences * tokens).view(sequences, tokens)} | hostile_counts(sequences)
