"""Inputs of the Gated Delta Net: a decode step on the GPU, any inputs in fp64, one sequence of packed inputs."""

from __future__ import annotations

import torch
from torch import Tensor


def to_double(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same inputs in fp64, for the oracle."""
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


def take_sequence(packed: dict[str, Tensor], n: int) -> dict[str, Tensor]:
    """Sequence n of packed inputs as a padded batch of one."""
    first, last = packed["cu_seqlens"][n].item(), packed["cu_seqlens"][n + 1].item()
    alone = {name: x[first:last][None] for name, x in packed.items() if name not in ("state", "cu_seqlens")}
    return alone | {"state": packed["state"][n : n + 1]}


def make_step(
    B: int,
    T: int,
    Hk: int = 2,
    Hv: int = 4,
    dk: int = 128,
    dv: int = 128,
    io: torch.dtype = torch.bfloat16,
    state: torch.dtype = torch.float32,
    slots: int = 0,
    seed: int = 0,
    packed: bool = False,
) -> dict[str, Tensor]:
    """A decode call on the GPU: strided views of one packed projection, a pool interleaved with another cache."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng)

    tokens = (B * T,) if packed else (B, T)
    widths = [Hk * dk, Hk * dk, Hv * dv, Hv, Hv]
    projection = normal(*tokens, sum(widths)).to(io).cuda()
    query, key, value, a, b = projection.split(widths, dim=-1)
    slots = slots or B + 3
    pool = normal(slots, 2, Hv, dv, dk).to(state).cuda()
    return {
        "query": query.unflatten(-1, (Hk, dk)),
        "key": key.unflatten(-1, (Hk, dk)),
        "value": value.unflatten(-1, (Hv, dv)),
        "a": a,
        "b": b,
        "A_log": (0.5 * normal(Hv)).cuda(),
        "dt_bias": normal(Hv).to(torch.bfloat16).cuda(),
        "state_pool": pool[:, 0],
        "state_indices": torch.randperm(slots, generator=rng)[:B].int().cuda(),
    }
