"""Checkpoints of layers that keep in several parameters what a layer of ours has in one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# By parameter, the modules of other layers whose parameters of the same last name are concatenated, in this order.
Separate = Mapping[str, tuple[tuple[str, ...], ...]]


def separate_parameters(
    state_dict: Mapping[str, Any], prefix: str, name: str, choices: tuple[tuple[str, ...], ...]
) -> list[str]:
    """The entries of a checkpoint that make up the parameter `name`; none if it has the parameter itself."""
    for parts in choices:
        found = [f"{prefix}{part}.{name.rpartition('.')[2]}" for part in parts]
        if all(each in state_dict for each in found):
            return found
    return []


def merge_parameters(state_dict: dict[str, Any], prefix: str, separate: Separate) -> None:
    """Replaces separate parameters by the layer's own."""
    for name, choices in separate.items():
        if found := separate_parameters(state_dict, prefix, name, choices):
            state_dict[prefix + name] = torch.cat([state_dict.pop(each) for each in found])
