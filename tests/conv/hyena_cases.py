"""Inputs of Hyena's operators for tests: parameters of models, and the limits of their ranges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SLOWEST, FASTEST = -1e-6, -50.0  # log poles: a decay to e⁻¹ in a million tokens, and to nothing in two


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(seed: int, dtype: torch.dtype = torch.float64) -> Any:
    """A function that draws normal values of a shape, new ones at each call."""
    random = generator(seed)
    return lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)


def gated_inputs(B: int, D: int, L: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """x1, x2, v, (B, D, L) each."""
    draw = draws(seed, dtype)
    return draw(B, D, L), draw(B, D, L), draw(B, D, L)


def fir_parameters(groups: int, D: int, K: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """weight (groups, 1, K) of norm 1, bias (D,)."""
    draw = draws(seed + 1, dtype)
    return draw(groups, 1, K) / K**0.5, draw(D)


def mask(B: int, L: int, seed: int) -> Tensor:
    return torch.rand(B, L, generator=generator(seed + 2)) < 0.7


def modal_parameters(
    groups: int, D: int, S: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """residues (groups, S) of both signs, log_poles (groups, S) from SLOWEST to FASTEST, bias (D,)."""
    draw = draws(seed + 1, dtype)
    position = torch.rand(groups, S, generator=generator(seed + 3), dtype=torch.float64)
    log_poles = -torch.exp(position * (torch.tensor(FASTEST / SLOWEST).double().log()) + torch.tensor(-SLOWEST).double().log())
    if groups and S > 1:
        log_poles[0, :2] = torch.tensor([SLOWEST, FASTEST], dtype=torch.float64)
    return draw(groups, S), log_poles.to(dtype), draw(D)
