"""The error measure all tests share, and the inputs of the Gated Delta Net."""

from __future__ import annotations

import torch
from torch import Tensor

from gdn_cuda.gdn.inputs import KEY_MODES as KEY_MODES
from gdn_cuda.gdn.inputs import make_gdn_inputs as make_gdn_inputs
from gdn_cuda.gdn.inputs import make_packed_gdn_inputs as make_packed_gdn_inputs


def rel_rms(out: Tensor, ref: Tensor) -> float:
    """Relative RMS error ‖out − ref‖ / ‖ref‖ in fp64; infinite when `out` is not finite or the shapes differ."""
    if out.shape != ref.shape or not bool(torch.isfinite(out).all()):
        return float("inf")
    wide = torch.complex128 if out.is_complex() or ref.is_complex() else torch.float64
    out, ref = out.detach().to("cpu", wide), ref.detach().to("cpu", wide)
    error, size = (out - ref).norm().item(), ref.norm().item()
    return error if size == 0 else error / size


def to_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same values in fp64, for the oracle."""
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


def take_sequence(packed: dict[str, Tensor], n: int) -> dict[str, Tensor]:
    """Sequence n of packed inputs as a padded batch of one."""
    first, last = packed["cu_seqlens"][n].item(), packed["cu_seqlens"][n + 1].item()
    alone = {name: x[first:last][None] for name, x in packed.items() if name not in ("state", "cu_seqlens")}
    return alone | {"state": packed["state"][n : n + 1]}
