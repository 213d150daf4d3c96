"""Pools of slots: what an engine allocates once, and hands out, copies and takes back slot by slot."""

from __future__ import annotations

import torch
from torch import Tensor

import gdn_cuda

STATE = ("state", "scales")  # a recurrence's state, of int8 with its scales
PENDING = "pending"  # int32: what an engine sets to 0 where a slot gets another sequence
UNTOUCHED = "banks"  # values 0 or 1 that no call writes otherwise, and that need no clearing
NO_CODE = -128  # codes are −127 to 127
STALE = 5  # tokens that are pending in a slot that no sequence has

States = dict[str, Tensor]  # those of STATE that there are


def spoil(tensor: Tensor) -> Tensor:
    """Fills with NaN, and codes, which have none, with what no call writes."""
    return tensor.fill_(NO_CODE if tensor.dtype == torch.int8 else torch.nan)


def decoded(states: States) -> Tensor:
    """States in a floating dtype."""
    if "scales" not in states:
        return states["state"]
    return states["state"] * states["scales"].repeat_interleave(32, -1)


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
            if name != UNTOUCHED:
                blank = self.blank(name, tensor)
                unused = tensor.isnan() if blank.is_floating_point() else tensor == blank
                written = (~unused).reshape(self.slots, -1).any(1).nonzero().flatten().tolist()
                expected = "what was there" if name == PENDING else "NaN"
                assert not written, (
                    f"pool {self.number}: {name}: expected {expected} in slots without a sequence, got values in {written}"
                )

    def blank(self, name: str, tensor: Tensor) -> Tensor:
        """A slot that no sequence has."""
        slot = tensor[:1].clone()
        return slot.fill_(STALE) if name == PENDING else spoil(slot)

    def spoil(self, slots: list[int]) -> None:
        for name, tensor in self.tensors.items():
            if name != UNTOUCHED:
                tensor[slots] = self.blank(name, tensor)

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
            if name not in STATE:
                self.tensors[name][slots] = tensor
        self.put(slots, {name: saved[name] for name in STATE if name in saved})

    # ---- States

    def states(self, slots: int | list[int] | Tensor) -> States:
        return {name: self.tensors[name][slots].clone() for name in STATE if name in self.tensors}

    def put(self, slots: list[int], states: States) -> None:
        """States of this pool's dtype or of another one."""
        given, state = states["state"], self.tensors["state"]
        if given.dtype == state.dtype:
            for name, tensor in states.items():
                self.tensors[name][slots] = tensor
            return
        out = {"out": state, "out_scales": self.tensors.get("scales")}
        index = torch.tensor(slots, device=state.device)
        gdn_cuda.convert_states(given, state.dtype, states.get("scales"), write_indices=index, **out)
