"""What Hyena's three operators have in common: how they are declared, and the layouts of their tensors (B, D, L)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..operators import operator
from ..operators.dtypes import state_dtype
from ..operators.layout import empty_in_layout, in_layout


def hyena_operator(computed: Callable[[Any], tuple[Tensor, Tensor]], columns: Callable[[Any], int]) -> Callable[..., Any]:
    """The decorator of an operator that returns y, or (y, state) with return_state.

    `computed` gives both, in plain torch, and `columns` how many numbers a channel's state has.
    """

    def reference(x: Any) -> Any:
        y, state = computed(x)
        return (y, state) if x.return_state else y

    def cpu(x: Any) -> tuple[Tensor, Tensor]:
        y, state = computed(x)
        return in_layout(y, x.x1), state.to(state_dtype(x.x1), memory_format=torch.contiguous_format, copy=True)

    def shapes(x: Any) -> tuple[Tensor, Tensor]:
        B, D, _ = x.x1.shape
        return empty_in_layout(x.x1), x.x1.new_empty((B, D, columns(x)), dtype=state_dtype(x.x1))

    return operator(
        reference=reference,
        cpu=cpu,
        shapes=shapes,
        results=lambda found, return_state: found if return_state else found[0],
    )


def tokens_adjacent(x: Tensor) -> Tensor:
    """Tokens are neighbours in memory."""
    return x.contiguous()


def channels_adjacent(x: Tensor) -> Tensor:
    """Channels are neighbours in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)
