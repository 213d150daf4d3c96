"""What a slice does to the state before it, S M + L, and to the gradient after it, E Mᵀ + L': composed in fp64."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fold(first: Tensor, maps: Sequence[Tensor], additions: Sequence[Tensor], transposed: bool = False) -> Tensor:
    """`first`, through S M + L for each map M and addition L in turn; with `transposed` S Mᵀ + L. (…, dv, dk) and (…, dk, dk).

    Where M is 0, as after a reset, nothing is left of S, neither infinities nor NaN."""
    state = first.double()
    for transition, addition in zip(maps, additions, strict=True):
        wide = transition.double()
        passed = state @ (wide.mT if transposed else wide)
        state = torch.where(wide.ne(0).any(-1).any(-1)[..., None, None], passed, 0) + addition
    return state.to(first.dtype)
