"""Inputs of rglru_scan for its tests on either device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from selective_inputs import channels_last as transposed
from torch import Tensor


@dataclass
class Inputs:
    u: Tensor
    delta: Tensor
    A: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def leaves(self) -> list[Tensor]:
        given = [self.u, self.delta, self.A, self.options.get("initial_state")]
        return [x for x in given if x is not None]


def laid_out(x: Tensor, channels_last: bool) -> Tensor:
    return transposed(x) if channels_last else x.contiguous()


def inputs(
    B: int,
    D: int,
    L: int,
    N: int,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    channels_last: bool = False,
    initial: bool = False,
    packed: list[int] | None = None,
    resets: bool = False,
    first_multiplier: bool = False,
) -> Inputs:
    """Decays from 0.2 to 0.9999 at delta = 1; `packed` has the offsets of sequences."""
    rng = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    u = torch.randn(B, D, L, generator=rng, dtype=torch.float64)
    delta = 8 * torch.rand(B, D, L, generator=rng, dtype=torch.float64)
    A = torch.exp(-(10 ** (0.2 - 4.2 * torch.rand(D, N, generator=rng, dtype=torch.float64))))
    options: dict[str, Any] = {"first_multiplier": first_multiplier}
    sequences = B if packed is None else len(packed) - 1
    if initial:
        options["initial_state"] = torch.randn(sequences, D, N, generator=rng, dtype=torch.float64).to(device, wide)
    if packed is not None:
        options["cu_seqlens"] = torch.tensor(packed, device=device)
    if resets:
        options["reset"] = (torch.rand(B, L, generator=rng) < 0.1).to(device)
    u, delta = (laid_out(x.to(device, dtype), channels_last) for x in (u, delta))
    return Inputs(u, delta, A.to(device, wide), options)
