"""Examples of Mamba-2's operators."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from ..gdn.state_codes import encode
from ..operators.examples import Arguments, Case, call_operator, example, random
from .gradients import ssd_scan_backward_operator
from .replay import ssd_replay_buffers, ssd_replay_decode
from .scan import ssd_scan, ssd_summary

CASES: dict[str, Case] = {}  # they are declared beside their calls, below

_OFFSETS = (0, 0, 65, 70)


def _drawn(B: int, T: int, seed: int, heads: int = 3) -> Arguments:
    def rows(*sizes: int, seed: int) -> Tensor:
        return random(*sizes, seed=seed, dtype=torch.bfloat16)

    return {
        "x": rows(B, T, heads, 64, seed=seed),
        "dt": rows(B, T, heads, seed=seed + 1),
        "A": -random(heads, seed=seed + 2).exp(),
        "B": rows(B, T, 1, 64, seed=seed + 3),
        "C": rows(B, T, 1, 64, seed=seed + 4),
        "dt_bias": random(heads, seed=seed + 5),
        "dt_softplus": True,
    }


@example(ssd_scan)
def _example(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(B, T, seed)
    more = {"D": random(3, 64, seed=seed + 6), "z": random(B, T, 3, 64, seed=seed + 7, dtype=torch.bfloat16)}
    return x | more | {"initial_state": random(B, 3, 64, 64, seed=seed + 8), "dt_limit": (0.0, 0.5), "return_last_state": True}


@example(ssd_scan, "ssd_scan, packed", packed=True)
def _example_packed(B: int, T: int, seed: int) -> Arguments:
    states = {"initial_state": random(3, 3, 64, 64, seed=seed + 8), "has_initial_state": torch.tensor([True, False, True])}
    return _drawn(1, 70, seed) | states | {"cu_seqlens": torch.tensor(_OFFSETS), "deterministic": True}


@example(ssd_scan, "ssd_scan, int8 states")
def _example_coded(B: int, T: int, seed: int) -> Arguments:
    pool, scales = encode(random(B + 2, 3, 64, 64, seed=seed + 8))
    slots = torch.arange(B).flip(0) + 1
    slots[1:2] = -1
    return _drawn(B, T, seed) | {"initial_state": pool, "state_scales": scales, "state_indices": slots}


@example(ssd_scan, "ssd_scan, numbered sequences")
def _example_numbered(B: int, T: int, seed: int) -> Arguments:
    numbers = torch.arange(T).div(7, rounding_mode="floor").int() + torch.arange(B)[:, None].int()
    return _drawn(B, T, seed) | {"seq_idx": numbers, "initial_state": random(B, 3, 64, 64, seed=seed + 8)}


@example(ssd_scan, "ssd_scan, states in bf16")
def _example_last_state(B: int, T: int, seed: int) -> Arguments:
    last = random(B, 3, 64, 64, seed=seed + 9, dtype=torch.bfloat16)
    return _drawn(B, T, seed) | {"last_state": last, "return_last_state": True}


@example(ssd_scan, "ssd_scan, last states in slots", packed=True)
def _example_last_slots(B: int, T: int, seed: int) -> Arguments:
    slots = {"last_state": random(5, 3, 64, 64, seed=seed + 9), "write_indices": torch.tensor([4, -1, 0])}
    return _drawn(1, 70, seed) | slots | {"cu_seqlens": torch.tensor(_OFFSETS), "return_last_state": True}


@example(ssd_scan, "ssd_scan, pool", packed=True)
def _example_pool(B: int, T: int, seed: int) -> Arguments:
    pool = random(4, 3, 64, 64, seed=seed + 8, dtype=torch.bfloat16)
    slots = {"initial_state": pool, "state_indices": torch.tensor([2, -1, 0]), "write_indices": torch.tensor([2, 3, 1])}
    return _drawn(1, 70, seed) | slots | {"cu_seqlens": torch.tensor(_OFFSETS)}


@example(ssd_scan, "ssd_scan, checkpoints")
def _example_checkpoints(B: int, T: int, seed: int) -> Arguments:
    before = random(B * (-(-T // 64)) + 1, 3, 64, 64, seed=seed + 9, dtype=torch.float16)
    return _drawn(B, T, seed) | {"checkpoint_every": 64, "states_before": before, "state_dtype": torch.bfloat16}


@example(ssd_scan, "ssd_scan, checkpoints of a pool", packed=True)
def _example_boundaries(B: int, T: int, seed: int) -> Arguments:
    rows = random(4, 3, 64, 64, seed=seed + 9)
    return _example_pool(B, T, seed) | {"boundaries": torch.tensor([0, 20, 65, 65, 70]), "checkpoints": rows}


@example(ssd_scan, "ssd_scan, states before blocks, of a pool", packed=True)
def _example_before(B: int, T: int, seed: int) -> Arguments:
    rows = random(2, 2, 3, 64, 64, seed=seed + 9)
    return _example_pool(B, T, seed) | {"checkpoint_every": 64, "checkpoints": rows[0], "states_before": rows[1]}


@example(ssd_scan, "ssd_scan, a checkpoint a sequence", packed=True)
def _example_offsets(B: int, T: int, seed: int) -> Arguments:
    return _example_packed(B, T, seed) | {"checkpoint_offsets": torch.tensor([0, 30, 5])}


def _summarized(x: Arguments) -> Arguments:
    return {name: y for name, y in x.items() if name in inspect.signature(ssd_summary).parameters}


@example(ssd_summary)
def _example_summary(B: int, T: int, seed: int) -> Arguments:
    return _summarized(_example(B, T, seed))


@example(ssd_summary, "ssd_summary, packed", packed=True)
def _example_packed_summary(B: int, T: int, seed: int) -> Arguments:
    return _summarized(_example_packed(B, T, seed))


def _backward_arguments(x: Arguments) -> Arguments:
    absent: dict[str, Any] = dict.fromkeys(ssd_scan_backward_operator.schema.arguments)
    limits = {"dt_lowest": 0.0, "dt_highest": math.inf, "deterministic": False}
    return {name: y for name, y in (absent | limits | x).items() if name in absent}


@example(call_operator("ssd_scan_backward"))
def _example_backward(B: int, T: int, seed: int) -> Arguments:
    x = _drawn(B, T, seed) | {"D": random(3, seed=seed + 6), "initial_state": random(B, 3, 64, 64, seed=seed + 8)}
    return _backward_arguments(
        x
        | {
            "out_gradient": random(B, T, 3, 64, seed=seed + 9, dtype=torch.bfloat16),
            "state_gradient": random(B, 3, 64, 64, seed=seed + 10),
        }
    )


@example(call_operator("ssd_scan_backward"), "ssd_scan_backward, packed", packed=True)
def _example_packed_backward(B: int, T: int, seed: int) -> Arguments:
    x = _example_packed(B, T, seed)
    return _backward_arguments(x | {"out_gradient": random(*x["x"].shape, seed=seed + 9, dtype=torch.bfloat16)})


def _replay(lead: tuple[int, ...], sequences: int, seed: int, io: torch.dtype, state: torch.dtype) -> Arguments:
    """Strided views of a projection; every slot has a ring with tokens, of which some are pending."""
    heads, groups, P, N, window = 4, 2, 16, 32 if state == torch.int8 else 24, 5
    widths = [heads * P, groups * N, groups * N, heads * P, heads, 4]  # rows begin at multiples of 16 bytes
    rows = random(*lead, sum(widths), seed=seed, dtype=io).split(widths, dim=-1)
    memory = random(sequences + 2, 2 * heads * P * N, seed=seed + 1)
    states = memory[:, : heads * P * N].unflatten(-1, (heads, P, N))
    pool, scales = encode(states) if state == torch.int8 else (states.to(state), None)
    buffers = ssd_replay_buffers(pool, window, groups, dtype=io)
    buffers.x_ring.copy_(random(*buffers.x_ring.shape, seed=seed + 2))
    buffers.B_ring.copy_(random(*buffers.B_ring.shape, seed=seed + 3))
    buffers.delta_ring.copy_(random(*buffers.delta_ring.shape, seed=seed + 4).sigmoid())
    buffers.pending.copy_(torch.arange(sequences + 2) % window)
    slots = torch.arange(sequences, dtype=torch.int32).flip(0) + 1
    slots[2:3] = -1  # a padding row
    return {
        "x": rows[0].unflatten(-1, (heads, P)),
        "dt": rows[4],
        "A": -random(heads, seed=seed + 5).exp(),
        "B": rows[1].unflatten(-1, (groups, N)),
        "C": rows[2].unflatten(-1, (groups, N)),
        "state_pool": pool,
        **buffers._asdict(),
        "D": random(heads, seed=seed + 6),
        "z": rows[3].unflatten(-1, (heads, P)),
        "dt_bias": random(heads, seed=seed + 7, dtype=torch.bfloat16),
        "state_indices": slots,
        "dt_softplus": True,
    } | ({} if scales is None else {"state_scales": scales})


@example(ssd_replay_decode)
def _example_replay(B: int, T: int, seed: int) -> Arguments:
    return _replay((B, min(T, 16)), B, seed, torch.bfloat16, torch.float32)


@example(ssd_replay_decode, "ssd_replay_decode, verify")
def _example_replay_verify(B: int, T: int, seed: int) -> Arguments:
    x = _replay((B, min(T, 5)), B, seed, torch.float16, torch.bfloat16)
    return x | {
        "num_accepted_tokens": torch.ones(B, dtype=torch.int64),
        "null_slot": B + 1,
        "dt_limit": (0.1, 0.5),
        "fold": True,
    }


@example(ssd_replay_decode, "ssd_replay_decode, int8 states")
def _example_replay_codes(B: int, T: int, seed: int) -> Arguments:
    return _replay((B, min(T, 16)), B, seed, torch.bfloat16, torch.int8) | {"fold": True}


@example(ssd_replay_decode, "ssd_replay_decode, packed", packed=True)
def _example_replay_packed(B: int, T: int, seed: int) -> Arguments:
    x = _replay((9,), 3, seed, torch.float32, torch.float16)
    absent: Arguments = {"D": None, "z": None, "dt_bias": None}
    folded = {"fold_mask": torch.tensor([True, False, False])}
    return x | absent | folded | {"cu_seqlens": torch.tensor([0, 3, 3, 8], dtype=torch.int32)}
