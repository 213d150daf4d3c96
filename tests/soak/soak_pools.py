"""Pools of slots: what an engine allocates once, and hands out, copies and takes back slot by slot."""

from __future__ import annotations

import torch
from torch import Tensor

PENDING = "pending"  # int32: what an engine sets to 0 where a slot gets another sequence
UNTOUCHED = "banks"  # values 0 or 1 that no call writes otherwise, and that need no clearing


class Pool:
    """Tensors (slots, …) by name. Slots that no sequence has are full of NaN; the first `reserved` ones never have any."""

    def __init__(self, tensors: dict[str, Tensor], number: int, reserved: int = 0) -> None:
        self.tensors, self.number, self.reserved = tensors, number, reserved
        self.slots = len(next(iter(tensors.values())))
        self.free: list[int] = []
        self.reset()

    def reset(self) -> None:
        self.free = list(range(self.reserved, self.slots))
        self.spoil(list(range(self.slots)))

    def check_unused(self) -> None:
        """Without sequences, nothing has been written since slots were given back."""
        assert sorted(self.free) == list(range(self.reserved, self.slots)), "slots were lost"
        for name, tensor in self.tensors.items():
            if name not in (PENDING, UNTOUCHED):
                written = (~tensor.isnan()).flatten(1).any(1).nonzero().flatten().tolist()
                assert not written, (
                    f"pool {self.number}: {name}: expected NaN in slots without a sequence, got values in {written}"
                )

    def spoil(self, slots: list[int]) -> None:
        for name, tensor in self.tensors.items():
            if name != UNTOUCHED:
                tensor[slots] = 9 if name == PENDING else torch.nan

    def take(self, count: int = 1) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        if PENDING in self.tensors:
            self.tensors[PENDING][taken] = 0
        return taken

    def give_back(self, slots: list[int]) -> None:
        self.spoil(slots)
        self.free += slots

    def save(self, slots: list[int]) -> dict[str, Tensor]:
        return {name: tensor[slots] for name, tensor in self.tensors.items()}

    def load(self, slots: list[int], saved: dict[str, Tensor]) -> None:
        for name, tensor in saved.items():
            self.tensors[name][slots] = tensor
