"""States in 8 bits in plain torch: int8 codes, and an fp32 scale for every 32 contiguous columns of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operators.schema import refuse
from ..operators.state_slots import gather_states

GROUP = 32
LARGEST_CODE = 127
LARGEST_SCALE = float.fromhex("0x1.020406p+121")  # the largest whose product with 127 is finite in fp32
SMALLEST_SCALE = 2.0**-126  # smaller ones would be subnormal


def encode(states: Tensor) -> tuple[Tensor, Tensor]:
    """(codes, scales) of states (…, dk): scale = largest magnitude of a group / 127, code = x / scale to nearest even.

    Groups whose scale would be subnormal are 0. Infinities are 127 · LARGEST_SCALE. A NaN makes its group's scale NaN.
    """
    groups = states.double().unflatten(-1, (-1, GROUP))
    scales = (groups.abs().amax(-1) / LARGEST_CODE).clamp(max=LARGEST_SCALE).float()
    scales = torch.where(scales < SMALLEST_SCALE, 0, scales)
    codes = groups / scales.double()[..., None]
    codes = codes.masked_fill((scales == 0)[..., None], 0).nan_to_num(0, LARGEST_CODE, -LARGEST_CODE)
    return codes.round().clamp(-LARGEST_CODE, LARGEST_CODE).to(torch.int8).flatten(-2), scales


def decode(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The states of codes (…, dk): scale · code."""
    return (scales.to(dtype)[..., None] * codes.unflatten(-1, (-1, GROUP)).to(dtype)).flatten(-2)


# ---- Pools of states, which have scales if they are int8


def zero_states(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """(a pool of zeros, its scales)."""
    pool = torch.zeros(sizes, dtype=dtype, device=device)
    return pool, pool.new_zeros((*sizes[:-1], sizes[-1] // GROUP), dtype=torch.float32) if dtype == torch.int8 else None


def require_scales(function: str, name: str, states: Tensor, scales: Tensor | None) -> None:
    """Scales `name` beside states of int8, and beside no others."""
    coded = states.dtype == torch.int8
    if coded is not (scales is not None):
        dtype = str(states.dtype).removeprefix("torch.")
        refuse(
            function,
            name,
            f"{'a tensor' if coded else 'None'}, as states are {dtype}",
            "a tensor" if scales is not None else "None",
        )


def read_states(pool: Tensor, scales: Tensor | None, slots: Tensor, active: Tensor, dtype: torch.dtype) -> Tensor:
    """(N, …): the states of the active sequences, zero for the others; those of codes in `dtype`."""
    states = gather_states(pool, slots, active)
    return states if scales is None else decode(states, gather_states(scales, slots, active), dtype)


def store_states(pool: Tensor, scales: Tensor | None, at: tuple[Tensor | int, ...], states: Tensor) -> None:
    """Writes states to pool[at]."""
    if scales is None:
        pool[at] = states.to(pool.dtype)
    else:
        codes, found = encode(states)
        pool[at], scales[at] = codes, found.to(scales.dtype)
