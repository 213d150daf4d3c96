"""What a slice does to the state before it, S M + L, and to the gradient after it, E Mᵀ + L'. Two maps are composed in fp64."""

from __future__ import annotations

import torch
from torch import Tensor


def composed(first: Tensor, second: Tensor, dv: int) -> Tensor:
    """L above M, (…, dv + dk, dk), of `first` and then `second`; without M if `first` is a state."""
    found = _mapped(first.double(), second[..., dv:, :])
    found[..., :dv, :] += second[..., :dv, :]
    return found.to(first.dtype)


def _mapped(rows: Tensor, transition: Tensor) -> Tensor:
    """Where M is 0, as after a reset, nothing is left of the rows, neither infinities nor NaN."""
    wide = transition.double()
    return torch.where(wide.ne(0).any(-1).any(-1)[..., None, None], rows @ wide, 0)
