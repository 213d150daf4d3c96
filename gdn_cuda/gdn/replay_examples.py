"""Examples of replay_decode."""

from __future__ import annotations

import torch

from ..operators.examples import Arguments
from ..operators.examples import random as drawn
from ..operators.verify import counts
from .replay import replay_buffers

_HK, _HV, _DK, _DV, _STEPS = 2, 4, 16, 8, 5


def _arguments(
    sequences: int, lengths: tuple[int, ...], seed: int, pool: torch.dtype, io: torch.dtype, index: torch.dtype = torch.int32
) -> Arguments:
    """Strided views; every slot has steps stored in one of its two banks, of which none is accepted."""
    rows = drawn(*lengths, 2 * _HK * _DK + _HV * _DV + 2 * _HV, seed=seed, dtype=io)
    query, key, value, a, b = rows.split([_HK * _DK, _HK * _DK, _HV * _DV, _HV, _HV], dim=-1)
    slots = sequences + 2
    memory = drawn(slots, 2 * _HV * _DV * _DK, seed=seed + 1, dtype=pool)
    state_pool = memory[:, : _HV * _DV * _DK].unflatten(-1, (_HV, _DV, _DK))
    buffers = replay_buffers(state_pool, _STEPS, _HK, dtype=io)
    chosen = torch.arange(sequences, dtype=index).flip(0) + 1
    for slot in chosen.tolist():
        bank = slot % 2
        buffers.keys[slot, bank] = drawn(_STEPS, _HK, _DK, seed=seed + slot).to(io)
        buffers.updates[slot] = drawn(_STEPS, _HV, _DV, seed=seed + slot)
        buffers.decays[slot, bank] = drawn(_STEPS, _HV, seed=seed + slot).sigmoid()
        buffers.banks[slot] = bank
    chosen[2:3] = -1  # a padding row
    return {
        "query": query.unflatten(-1, (_HK, _DK)),
        "key": key.unflatten(-1, (_HK, _DK)),
        "value": value.unflatten(-1, (_HV, _DV)),
        "a": a,
        "b": b,
        "A_log": drawn(_HV, seed=seed + 2),
        "dt_bias": drawn(_HV, seed=seed + 3, dtype=torch.bfloat16),
        "state_pool": state_pool,
        **buffers._asdict(),
        "state_indices": chosen,
    }


def later_call(B: int, T: int, seed: int) -> Arguments:
    return _arguments(B, (B, min(T, _STEPS)), seed, torch.float32, torch.bfloat16) | counts(B, _STEPS)


def first_call(B: int, T: int, seed: int) -> Arguments:
    x = _arguments(B, (B, min(T, _STEPS)), seed, torch.bfloat16, torch.float16, torch.int64)
    return x | {"null_slot": B + 1, "scale": 0.3, "allow_negative_eigenvalues": True}


def channel_gates(B: int, T: int, seed: int) -> Arguments:
    """A gate for every channel of the key."""
    x = later_call(B, T, seed)
    bias, gates = drawn(_HV, _DK, seed=seed + 5), drawn(*x["b"].shape, _DK, seed=seed + 4)
    decays = drawn(*x["decays"].shape, _DK, seed=seed + 6).sigmoid()
    return x | {"a": gates, "dt_bias": bias, "decays": decays, "lower_bound": -5.0}


def packed(B: int, T: int, seed: int) -> Arguments:
    x = _arguments(3, (9,), seed, torch.float32, torch.bfloat16) | counts(3, _STEPS)
    return x | {"cu_seqlens": torch.tensor([0, 3, 0, 5]).cumsum(0).to(torch.int32)}
