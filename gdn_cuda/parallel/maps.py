"""What a slice does to the state before it, S M + L, and to the gradient after it, E Mᵀ + L': composed in fp64."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def fold(first: Tensor, maps: Iterable[Tensor], additions: Iterable[Tensor]) -> Tensor:
    """`first`, through S M + L for each map M and addition L in turn: (…, dv, dk), (…, dk, dk) and (…, dv, dk)."""
    state = first.double()
    for transition, addition in zip(maps, additions, strict=True):
        state = _mapped(state, transition) + addition
    return state.to(first.dtype)


def composed(first: Tensor, second: Tensor, dv: int) -> Tensor:
    """L above M, (…, dv + dk, dk), of `first` and then `second`; without M if `first` is a state."""
    found = _mapped(first.double(), second[..., dv:, :])
    found[..., :dv, :] += second[..., :dv, :]
    return found.to(first.dtype)


def _mapped(rows: Tensor, transition: Tensor) -> Tensor:
    """Where M is 0, as after a reset, nothing is left of the rows, neither infinities nor NaN."""
    wide = transition.double()
    return torch.where(wide.ne(0).any(-1).any(-1)[..., None, None], rows @ wide, 0)
