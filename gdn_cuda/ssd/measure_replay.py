"""Benchmark of ssd_replay_decode beside a step in place, and calls of its kernel for compute-sanitizer.

A ring of W tokens in bf16. The sequences' rings are filled to all counts from 0 to W, so that in every call one of W + 1
sequences writes its state, as in a server. Verify keeps half a ring pending: its call only reads states.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..gdn.state_codes import encode
from ..operators import hostile, verify
from ..operators.measure import Case, Inputs, Outcome, Work, bench, draw, normal, sanitizes, size
from .replay import SsdReplayBuffers, ssd_commit_replay, ssd_replay_buffers, ssd_replay_decode

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}
_GROUPS, _CHANNELS, _STATES = 8, 64, 128


@bench(operator="ssd_replay_decode")
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    shapes = product((64, 128) if on_gpu else (8,), (1, 16, 64, 256) if on_gpu else (2,), _NAMES)
    for heads, batch, state in shapes:
        kind = f"{_NAMES[state]} state"
        shape = f"B={batch} {heads}×{_CHANNELS} G={_GROUPS} N={_STATES} {kind}"
        for window in (8, 16, 32) if on_gpu else (4,):
            yield Case(f"{shape}, W={window}", partial(_replay_work, device, heads, batch, state, window), kind=kind)
        if state != torch.int8:
            yield Case(f"{shape}, in place", partial(_in_place_work, device, heads, batch, state), kind=kind)
        if batch != 64:
            continue
        for tokens in (2, 4, 8):
            work = partial(_replay_work, device, heads, batch, state, 16, tokens)
            yield Case(f"{shape}, W=16, verify of {tokens}", work, kind=kind)


def _tokens(device: str, heads: int, batch: int, tokens: int) -> Inputs:
    fp32 = partial(normal, device=device, dtype=torch.float32)
    return {
        "x": normal(batch, tokens, heads, _CHANNELS, device=device),
        "dt": normal(batch, tokens, heads, device=device),
        "A": -fp32(heads).abs(),
        "B": normal(batch, tokens, _GROUPS, _STATES, device=device),
        "C": normal(batch, tokens, _GROUPS, _STATES, device=device),
        "D": fp32(heads),
        "z": normal(batch, tokens, heads, _CHANNELS, device=device),
        "dt_bias": fp32(heads),
        "dt_softplus": True,
        "out": torch.empty(batch, tokens, heads, _CHANNELS, device=device, dtype=torch.bfloat16),
    }


def _replay_work(device: str, heads: int, batch: int, state: torch.dtype, window: int, tokens: int = 1) -> Work:
    x = _tokens(device, heads, batch, tokens)
    pool = normal(batch, heads, _CHANNELS, _STATES, device=device, dtype=torch.float32)
    states = dict(zip(("state_pool", "state_scales"), encode(pool), strict=True)) if state == torch.int8 else {}
    pool = states.setdefault("state_pool", pool.to(state))
    buffers = ssd_replay_buffers(pool, window, _GROUPS)
    buffers.x_ring.normal_(), buffers.B_ring.normal_(), buffers.delta_ring.fill_(0.5)
    new = size(*(x[name] for name in ("x", "dt", "B", "C", "z", "out")))
    ring = size(*buffers[:3])
    if tokens > 1:
        buffers.pending.fill_(window // 2)
        x |= verify.measured_counts(device, batch, 0)
    else:
        buffers.pending.copy_(torch.arange(batch) % (window + 1))
    x |= states | buffers._asdict() | {"state_indices": torch.randperm(batch, device=device, dtype=torch.int32)}
    read = size(*states.values())
    written = 0 if tokens > 1 else read // (window + 1)
    moved = read + written + ring // 2 + ring * tokens // window + new

    def outcome(inputs: Inputs) -> Outcome:
        names = (*states, *SsdReplayBuffers._fields)
        own = inputs | {name: inputs[name].clone() for name in names} | {"out": None}
        return ssd_replay_decode(**own), own["state_pool"]

    return Work(partial(ssd_replay_decode, **x), moved, 0, x, outcome, x)


def _in_place_work(device: str, heads: int, batch: int, state: torch.dtype) -> Work:
    """The same by selective_state_update."""
    from ..runtime import package as gdn_cuda

    given = _tokens(device, heads, batch, 1)
    pool = normal(batch, heads, _CHANNELS, _STATES, device=device, dtype=state)

    def rows(y: Tensor) -> Tensor:
        return y[..., None].expand(*y.shape, _CHANNELS)

    x: dict[str, Any] = {name: given[name][:, 0] for name in ("x", "B", "C", "z", "out")} | {
        "dt": rows(given["dt"][:, 0]),
        "A": rows(given["A"])[..., None].expand(-1, -1, _STATES),
        "D": rows(given["D"]),
        "dt_bias": rows(given["dt_bias"]),
        "dt_softplus": True,
        "state": pool,
        "state_batch_indices": torch.randperm(batch, device=device, dtype=torch.int32),
    }
    moved = 2 * size(pool) + size(*(given[name] for name in ("x", "dt", "B", "C", "z", "out")))

    def outcome(inputs: Inputs) -> Outcome:
        copy = inputs["state"].clone()
        return gdn_cuda.selective_state_update(**inputs | {"state": copy, "out": None}), copy

    return Work(partial(gdn_cuda.selective_state_update, **x), moved, 0, x, outcome, x)


# ---- compute-sanitizer


@sanitizes("replay_step")
def _sanitized() -> None:
    """A token and several, rings that are full and not, rows that do not start on 16 bytes; invalid slots, counts, offsets."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.bfloat16)
    for (io, state), (P, N), (tokens, window) in product(
        zip(dtypes, (torch.float32, torch.bfloat16, torch.float16, torch.int8), strict=True),
        ((64, 128), (80, 256), (8, 40)),
        ((1, 2), (5, 7)),
    ):
        if state == torch.int8 and N % 32:
            continue
        for packed in (False, True):
            _sanitized_call(io, state, P, N, tokens, window, packed)


def _sanitized_call(io: torch.dtype, state: torch.dtype, P: int, N: int, tokens: int, window: int, packed: bool) -> None:
    sequences, heads, groups = 5, 6, 2
    lead = (sequences * tokens,) if packed else (sequences, tokens)
    pool = draw(sequences + 2, heads, P, N, dtype=torch.float32).to(state)
    scales = torch.rand(*pool.shape[:3], N // 32, device="cuda") if state == torch.int8 else None
    buffers = ssd_replay_buffers(pool, window, groups, dtype=io)
    buffers.x_ring.normal_(), buffers.B_ring.normal_(), buffers.delta_ring.fill_(0.5)
    slots = hostile.hostile_indices(sequences)
    slots[::2] = torch.arange(slots[::2].shape[0], device="cuda")
    x: dict[str, Any] = {
        "x": draw(*lead, heads, P, dtype=io),
        "dt": draw(*lead, heads),
        "A": -draw(heads).abs(),
        "B": draw(*lead, groups, N + packed, dtype=io)[..., int(packed) :],  # rows that do not start on 16 bytes
        "C": draw(*lead, groups, N, dtype=io),
        "D": draw(heads, P),
        "z": draw(*lead, heads, P, dtype=io),
        "state_pool": pool,
        **buffers._asdict(),
        "state_indices": slots,
        "state_scales": scales,
        "cu_seqlens": torch.tensor([0, *hostile.INDICES], device="cuda") if packed else None,
        "dt_softplus": True,
    }
    for _ in range(window // tokens + 2):
        ssd_replay_decode(**x)
    valid = {name: count % (tokens + 1) for name, count in verify.hostile_counts(sequences).items()}
    for counts in (verify.hostile_counts(sequences), valid, valid):
        ssd_replay_decode(**x, **counts)
    ssd_commit_replay(pool, buffers, x["A"], slots, valid["num_accepted_tokens"], state_scales=scales)
