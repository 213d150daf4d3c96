"""Contiguous transpositions, by a kernel: torch's copy takes a multiple of its time, most of all beyond 2^31 elements."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .examples import Arguments, call_operator, example, random
from .gradients import Differentiable, leading_first
from .layout import channels_are_last


def _batched(x: Any, dims: Any) -> tuple[Tensor, int]:
    (mapped,) = leading_first(x, dims, {"x": 3})
    return _transposed(mapped.flatten(0, 1)).unflatten(0, mapped.shape[:2]), 0


_transposed: Differentiable = Differentiable(
    "transposed",
    shapes=lambda x: x.x.new_empty((x.x.shape[0], x.x.shape[2], x.x.shape[1])),
    reference=lambda x: x.x.mT,
    backward=lambda x, needs, grad: {"x": _transposed(grad)},
    tangent=lambda x, of: _transposed(of.x),
    batched=_batched,
    saves_arguments=False,
)


def contiguous_mT(x: Tensor) -> Tensor:
    """x.mT of x (B, rows, columns), contiguous: a new tensor, unless that view is contiguous already."""
    return x.mT if x.mT.is_contiguous() else _transposed(x)


def dense_in_layout(x: Tensor, like: Tensor) -> Tensor:
    """x (B, D, L) in the layout of `like`, without gaps: a copy, unless it is so already."""
    return contiguous_mT(x).mT if channels_are_last(like) else contiguous_mT(x.mT)


# ---- Examples


@example(call_operator("transposed"))
def _example(B: int, T: int, seed: int) -> Arguments:
    return {"x": random(B, T, 6, seed=seed)}
