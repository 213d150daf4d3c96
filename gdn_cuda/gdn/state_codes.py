"""States in 8 bits in the reference: codes from -127 to 127, and an fp32 scale for 32 columns of a row."""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
LARGEST_SCALE = float.fromhex("0x1.020406p+121")  # whose product with 127 is finite
_SMALLEST_SCALE = 2.0**-126


def encoded(states: Tensor) -> tuple[Tensor, Tensor]:
    """(codes, scales) of states (…, dk): int8 (…, dk), fp32 (…, dk / 32). Codes beside a scale that is NaN are 0."""
    groups = states.float().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / 127).clamp(max=LARGEST_SCALE)
    scales = torch.where(scales < _SMALLEST_SCALE, 0, scales)
    bounds = torch.finfo(torch.float32)
    codes = (groups.clamp(bounds.min, bounds.max) / scales[..., None]).round().clamp(-127, 127)
    return codes.nan_to_num(0).flatten(-2).to(torch.int8), scales


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """fp32 states (…, dk)."""
    return (codes.unflatten(-1, (-1, GROUP)) * scales[..., None]).flatten(-2)
