"""Invalid indices for calls under compute-sanitizer: slots, counts and offsets are read on the GPU, where the host cannot check
them."""

from __future__ import annotations

import torch
from torch import Tensor

INDICES = [2**63 - 1, -(2**63), 2**32, -1, 3]


def hostile_indices(count: int = len(INDICES)) -> Tensor:
    """On the GPU; one of five is a valid slot."""
    return torch.tensor(INDICES, device="cuda").repeat(count)[:count]
