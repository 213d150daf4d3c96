"""The layouts of Hyena's tensors (B, D, L): contiguous, or the transposed view of a contiguous (B, L, D) tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.layout import empty_in_layout, in_layout

__all__ = ["tokens_adjacent", "empty_in_layout", "in_layout", "state_dtype", "channels_adjacent"]


def state_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def tokens_adjacent(x: Tensor) -> Tensor:
    """Tokens are neighbours in memory."""
    return x.contiguous()


def channels_adjacent(x: Tensor) -> Tensor:
    """Channels are neighbours in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
