"""Gates for benchmarks of prefill.

*fast* gates are uniform in (−1, 0): a state decays to nothing within two chunks. *init* gates are those of a model that FLA or
Mamba-2 has just initialised: −A dt at every token of a head, with A uniform in 1 … 16 and dt log-uniform in 0.001 … 0.1. In
*mixed*, every second head has fast decay, and the others slow decay: they keep 0.999 to 0.99999 of the state at each token.

The heads of *init* are spread evenly over these distributions instead of drawn at random: the head with the slowest decay
decides how much time is saved by splitting a sequence, and random draws of eight heads differ by a factor of two in time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

KINDS = ("fast", "init", "mixed")
_GOLDEN = (5**0.5 - 1) / 2


def gates(kind: str, leading: tuple[int, ...], heads: int, device: str) -> Tensor:
    """Logarithms of decays, (…, heads), fp32."""
    fast = -torch.rand(*leading, heads, device=device)
    if kind == "fast":
        return fast
    if kind == "mixed":
        kept = 1 - torch.logspace(-3, -5, (heads + 1) // 2, device=device)
        fast[..., ::2] = kept.log()
        return fast
    place = (torch.arange(heads, device=device) + 0.5) / heads
    A = 1 + 15 * place
    dt = 0.001 * torch.exp(math.log(100) * ((torch.arange(heads, device=device) + 0.5) * _GOLDEN % 1))
    return (-A * dt).expand(*leading, heads).contiguous()
