"""The layouts of Hyena's tensors (B, D, L): contiguous, or the transposed view of a contiguous (B, L, D) tensor."""

from __future__ import annotations

from torch import Tensor


def tokens_adjacent(x: Tensor) -> Tensor:
    """Tokens are neighbours in memory."""
    return x.contiguous()


def channels_adjacent(x: Tensor) -> Tensor:
    """Channels are neighbours in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
