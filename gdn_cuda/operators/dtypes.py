"""The dtypes of states, and the dtypes that references compute in."""

from __future__ import annotations

import torch
from torch import Tensor


def state_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def wide_dtype(x: Tensor) -> torch.dtype:
    return torch.complex128 if x.is_complex() else torch.float64


def from_pairs(pairs: Tensor) -> Tensor:
    """Complex values from pairs (…, 2) with any strides: torch.view_as_complex refuses odd strides and offsets."""
    return torch.complex(pairs[..., 0], pairs[..., 1])


def wide(x: Tensor) -> Tensor:
    return x.to(wide_dtype(x))
