"""Examples of ring_decode."""

from __future__ import annotations

import torch

from ..operators.examples import Arguments
from ..operators.examples import random as drawn
from .ring import ring_buffers
from .state_codes import encode

_HK, _HV, _DK, _DV, _WINDOW = 2, 4, 32, 8, 5


def _arguments(lead: tuple[int, ...], sequences: int, seed: int, io: torch.dtype, pool: torch.dtype) -> Arguments:
    """Strided views; every slot has a ring with tokens, of which some are pending."""
    rows = drawn(*lead, 2 * _HK * _DK + _HV * _DV + 2 * _HV, seed=seed, dtype=io)
    query, key, value, a, b = rows.split([_HK * _DK, _HK * _DK, _HV * _DV, _HV, _HV], dim=-1)
    memory = drawn(sequences + 2, 2 * _HV * _DV * _DK, seed=seed + 1)
    states = memory[:, : _HV * _DV * _DK].unflatten(-1, (_HV, _DV, _DK))
    state_pool, scales = encode(states) if pool == torch.int8 else (states.to(pool), None)
    buffers = ring_buffers(state_pool, _WINDOW, _HK, dtype=io)
    buffers.keys.copy_(drawn(*buffers.keys.shape, seed=seed + 2))
    buffers.updates.copy_(drawn(*buffers.updates.shape, seed=seed + 3))
    buffers.decays.copy_(drawn(*buffers.decays.shape, seed=seed + 4).sigmoid())
    buffers.pending.copy_(torch.arange(sequences + 2) % _WINDOW)
    slots = torch.arange(sequences, dtype=torch.int32).flip(0) + 1
    slots[2:3] = -1  # a padding row
    return {
        "query": query.unflatten(-1, (_HK, _DK)),
        "key": key.unflatten(-1, (_HK, _DK)),
        "value": value.unflatten(-1, (_HV, _DV)),
        "a": a,
        "b": b,
        "A_log": drawn(_HV, seed=seed + 5),
        "dt_bias": drawn(_HV, seed=seed + 6, dtype=torch.bfloat16),
        "state_pool": state_pool,
        **buffers._asdict(),
        "state_indices": slots,
    } | ({} if scales is None else {"state_scales": scales})


def decode(B: int, T: int, seed: int) -> Arguments:
    return _arguments((B, min(T, 16)), B, seed, torch.bfloat16, torch.float32)


def verify(B: int, T: int, seed: int) -> Arguments:
    x = _arguments((B, min(T, _WINDOW)), B, seed, torch.float16, torch.bfloat16)
    return x | {"num_accepted_tokens": torch.ones(B, dtype=torch.int64), "null_slot": B + 1, "scale": 0.3, "fold": True}


def packed(B: int, T: int, seed: int) -> Arguments:
    x = _arguments((9,), 3, seed, torch.bfloat16, torch.float16)
    folded = {"fold_mask": torch.tensor([True, False, False])}
    return x | folded | {"cu_seqlens": torch.tensor([0, 3, 3, 8], dtype=torch.int32)}


def codes(B: int, T: int, seed: int) -> Arguments:
    x = _arguments((B, min(T, 16)), B, seed, torch.bfloat16, torch.int8)
    return x | {"allow_negative_eigenvalues": True, "fold": True}
