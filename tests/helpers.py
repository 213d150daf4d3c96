"""The error measure that all tests share."""

from __future__ import annotations

import torch
from torch import Tensor


def rel_rms(out: Tensor, ref: Tensor) -> float:
    """Relative RMS error ‖out − ref‖ / ‖ref‖ in fp64; infinite when `out` is not finite or the shapes differ."""
    if out.shape != ref.shape or not bool(torch.isfinite(out).all()):
        return float("inf")
    wide = torch.complex128 if out.is_complex() or ref.is_complex() else torch.float64
    out, ref = out.detach().to("cpu", wide), ref.detach().to("cpu", wide)
    error, size = (out - ref).norm().item(), ref.norm().item()
    return error if size == 0 else error / size
