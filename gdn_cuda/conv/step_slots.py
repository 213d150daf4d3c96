"""Shared by the references of steps: tokens with or without a token dimension, and states in slots of a pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..operators.state_slots import check_slots, gather_states, is_slot


def with_tokens(x: Tensor) -> Tensor:
    """(B, D) or (B, D, T) as (B, D, T) in fp64."""
    return (x if x.dim() == 3 else x.unsqueeze(-1)).double()


class Slots:
    """The slots of a call's sequences in `pool`, and which sequences run; raises IndexError for a slot past the pool."""

    def __init__(self, function: str, x: Any, pool: Tensor, sequences: int):
        given = x.state_indices
        self.slots = torch.arange(sequences, device=pool.device) if given is None else given.to(torch.int64)
        check_slots(function, "state_indices", self.slots, pool.shape[0], x.null_slot)
        self.active = is_slot(self.slots, x.null_slot)
        self.states = gather_states(pool, self.slots, self.active).double()

    def outputs(self, y: Tensor, like: Tensor) -> Tensor:
        return torch.where(self.active[:, None, None], y, 0).reshape(like.shape).to(like.dtype)

    def after(self, pool: Tensor, states: Tensor) -> Tensor:
        """The pool with the new states of the sequences that run."""
        return pool.index_put((self.slots[self.active],), states[self.active].to(pool.dtype))
