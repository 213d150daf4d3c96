"""Benchmarks of replay_decode and ring_decode, and calls of their kernels for compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ..operators import hostile, verify
from ..operators.measure import Case, Inputs, Outcome, Work, bench, draw, normal, sanitizes, size
from .inputs import projections
from .replay import ReplayBuffers, commit_replay, replay_buffers, replay_decode
from .ring import RingBuffers, ring_buffers, ring_decode

# ---- Benchmark: verify by replay, and for comparison verify that stores every state

_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@bench(operator="replay_decode")
def _measured(device: str) -> Iterator[Case]:
    on_gpu = device == "cuda"
    for batch, tokens, state in product((1, 16, 64, 256) if on_gpu else (1, 4), (4, 8), _NAMES):
        kind = f"{_NAMES[state]} state"
        shape = f"16/32 B={batch} T={tokens} {kind}"
        yield Case(shape, partial(_replay_work, device, batch, tokens, state), kind=kind)
        yield Case(f"{shape}, every state kept", partial(_kept_work, device, batch, tokens, state), kind=kind)


def _verify_inputs(device: str, batch: int, tokens: int, slots: int, state: torch.dtype) -> Inputs:
    fp32 = partial(normal, device=device, dtype=torch.float32)
    return projections(device, batch, tokens, key_heads=16, value_heads=32) | {
        "a": normal(batch, tokens, 32, device=device),
        "b": normal(batch, tokens, 32, device=device),
        "A_log": fp32(32),
        "dt_bias": fp32(32),
        "state_pool": normal(slots, 32, 128, 128, device=device, dtype=state),
        "out": torch.empty(batch, tokens, 32, 128, device=device, dtype=torch.bfloat16),
        **verify.measured_counts(device, batch, tokens),
    }


def _verify_work(call: Callable[..., Tensor], x: Inputs, moved: int) -> Work:
    written = ("state_pool", *(name for name in ReplayBuffers._fields if name in x))

    def outcome(inputs: Inputs) -> Outcome:
        own = inputs | {name: inputs[name].clone() for name in written} | {"out": None}
        return call(**own), own["state_pool"]

    tokens = size(*(x[name] for name in ("query", "key", "value", "a", "b", "out")))
    return Work(partial(call, **x), moved + tokens, 0, x, outcome, x)


def _replay_work(device: str, batch: int, tokens: int, state: torch.dtype) -> Work:
    """All tokens of the last call are accepted."""
    x = _verify_inputs(device, batch, tokens, batch, state)
    buffers = replay_buffers(x["state_pool"], tokens, 16)
    buffers.updates.normal_(), buffers.keys.normal_(), buffers.decays.fill_(0.5)
    x |= buffers._asdict() | {"state_indices": torch.randperm(batch, device=device, dtype=torch.int32)}
    # Keys and decays: one bank is read and the other written.
    return _verify_work(replay_decode, x, 2 * size(x["state_pool"], buffers.updates) + size(buffers.keys, buffers.decays))


def _kept_work(device: str, batch: int, tokens: int, state: torch.dtype) -> Work:
    from ..runtime import package as gdn_cuda

    x = _verify_inputs(device, batch, tokens, batch * tokens, state)
    x["state_indices"] = torch.randperm(batch * tokens, device=device, dtype=torch.int32).view(batch, tokens)
    states = size(x["state_pool"])
    return _verify_work(gdn_cuda.fused_decode, x, states + states // tokens)


# ---- Benchmark: decode by a ring, and in place

_RING_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}


@bench(operator="ring_decode")
def _measured_ring(device: str) -> Iterator[Case]:
    """A ring of W tokens: calls that read states, calls that write all of them, and, where one of W + 1 sequences writes, the
    mean over W + 1 calls."""
    on_gpu = device == "cuda"
    for batch, state in product((1, 16, 64, 256) if on_gpu else (1, 4), _RING_NAMES):
        kind = f"{_RING_NAMES[state]} state"
        shape = f"16/32 B={batch} {kind}"
        for window in (8, 16) if on_gpu else (8,):
            yield Case(f"{shape}, W={window}, reads", partial(_ring_work, device, batch, 1, state, window, "reads"), kind=kind)
            yield Case(
                f"{shape}, W={window}, writes", partial(_ring_work, device, batch, 1, state, window, "writes"), kind=kind
            )
            if batch > window:
                work = partial(_ring_work, device, batch, 1, state, window, "mean")
                yield Case(f"{shape}, W={window}, mean", work, kind=kind)
        for tokens in (2, 4, 8) if batch == 64 else ():
            work = partial(_ring_work, device, batch, tokens, state, 8, "reads")
            yield Case(f"{shape}, W=8, verify of {tokens}", work, kind=kind)
        if state != torch.int8:
            yield Case(f"{shape}, in place", partial(_in_place_work, device, batch, state), kind=kind)


def _ring_inputs(device: str, batch: int, tokens: int, state: torch.dtype) -> Inputs:
    x = _verify_inputs(device, batch, tokens, batch, torch.float32 if state == torch.int8 else state)
    del x["num_accepted_tokens"]
    if state == torch.int8:
        x["state_pool"] = (20 * x["state_pool"]).to(state)
        x["state_scales"] = torch.full((batch, 32, 128, 4), 0.05, device=device)
    return x | {"state_indices": torch.randperm(batch, device=device, dtype=torch.int32)}


def _ring_work(device: str, batch: int, tokens: int, state: torch.dtype, window: int, which: str) -> Work:
    """Calls that read accept no token, so that counts stay; those that write set the counts again, in a kernel of its own; of
    the others one of W + 1 sequences writes in every call."""
    x = _ring_inputs(device, batch, tokens, state)
    ring = ring_buffers(x["state_pool"], window, 16)
    ring.keys.normal_(), ring.updates.normal_(), ring.decays.fill_(0.5)
    if which == "mean":
        ring.pending.copy_(torch.arange(batch) % (window + 1))
    else:
        ring.pending.fill_(window // 2 if which == "reads" else window)
    x |= ring._asdict()
    if which == "reads":
        x |= verify.measured_counts(device, batch, 0)
    states = size(x["state_pool"], *([x["state_scales"]] if state == torch.int8 else []))
    written = {"reads": 0, "writes": states}.get(which, states // (window + 1))
    stored = size(*ring[:3]) // (1 if which == "writes" else 2)
    new = size(*(x[name] for name in ("query", "key", "value", "a", "b", "out")))

    def call(**given: Any) -> Tensor:
        if which == "writes":
            given["pending"].fill_(window)
        return ring_decode(**given)

    def outcome(inputs: Inputs) -> Outcome:
        names = ("state_pool", "state_scales", *RingBuffers._fields)
        own = inputs | {name: inputs[name].clone() for name in names if name in inputs} | {"out": None}
        return call(**own), own["state_pool"]

    return Work(partial(call, **x), states + written + stored + new, 0, x, outcome, x)


def _in_place_work(device: str, batch: int, state: torch.dtype) -> Work:
    from ..runtime import package as gdn_cuda

    x = _ring_inputs(device, batch, 1, state)
    return _verify_work(gdn_cuda.fused_decode, x, 2 * size(x["state_pool"]))


# ---- compute-sanitizer


@sanitizes("ring_decode")
def _sanitized_rings() -> None:
    """A token and several, rings that are full and not, rows that do not start on 16 bytes; invalid slots, counts, offsets."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
    for state, (dk, dv), (tokens, window) in product(dtypes, ((128, 128), (96, 40), (256, 72)), ((1, 2), (5, 7))):
        for io, packed in ((torch.bfloat16, False), (torch.float16, True)):
            _sanitized_ring(io, state, dk, dv, tokens, window, packed)


def _sanitized_ring(io: torch.dtype, state: torch.dtype, dk: int, dv: int, tokens: int, window: int, packed: bool) -> None:
    sequences, Hk, Hv = 5, 2, 4
    lead = (sequences * tokens,) if packed else (sequences, tokens)
    pool = draw(sequences + 2, Hv, dv, dk, dtype=torch.float32 if state == torch.int8 else state).to(state)
    ring = ring_buffers(pool, window, Hk, dtype=io)
    ring.keys.normal_(), ring.updates.normal_(), ring.decays.fill_(0.5)
    slots = hostile.hostile_indices(sequences)
    slots[::2] = torch.arange(slots[::2].shape[0], device="cuda")
    x: dict[str, Any] = {
        "query": draw(*lead, Hk, dk, dtype=io),
        "key": draw(*lead, Hk, dk + packed, dtype=io)[..., int(packed) :],  # rows that do not start on 16 bytes
        "value": draw(*lead, Hv, dv, dtype=io),
        "a": draw(*lead, Hv),
        "b": draw(*lead, Hv),
        "A_log": draw(Hv),
        "dt_bias": draw(Hv),
        "state_pool": pool,
        **ring._asdict(),
        "state_indices": slots,
        "state_scales": torch.rand(*pool.shape[:3], dk // 32, device="cuda") if state == torch.int8 else None,
        "cu_seqlens": torch.tensor([0, *hostile.INDICES], device="cuda") if packed else None,
    }
    for _ in range(window // tokens + 2):
        ring_decode(**x)
    valid = {name: count % (tokens + 1) for name, count in verify.hostile_counts(sequences).items()}
    for counts in (verify.hostile_counts(sequences), valid, valid):
        ring_decode(**x, **counts)
    commit_replay(pool, ring, slots, **valid, state_scales=x["state_scales"])


@sanitizes("replay")
def _sanitized() -> None:
    """Few and many tokens, exact and masked heads, rows that do not start on 16 bytes; invalid slots, counts and offsets."""
    types = product((torch.bfloat16, torch.float16), (torch.float32, torch.bfloat16))
    for (io, state), (dk, dv), steps in product(types, ((128, 128), (96, 40), (256, 72), (40, 8)), (5, 16)):
        for packed in (False, True):
            _sanitized_call(io, state, dk, dv, steps, sequences=5, packed=packed)
    for channels in (False, True):  # several row steps per block
        _sanitized_call(torch.bfloat16, torch.float32, 128, 128, 4, sequences=60, packed=False, channel_gates=channels)
    for dk, dv in ((96, 40), (40, 8)):
        _sanitized_call(torch.float16, torch.bfloat16, dk, dv, 16, sequences=5, packed=True, channel_gates=True)


def _sanitized_call(
    io: torch.dtype,
    state: torch.dtype,
    dk: int,
    dv: int,
    steps: int,
    sequences: int,
    packed: bool,
    channel_gates: bool = False,
) -> None:
    lengths = (sequences * steps,) if packed else (sequences, steps)
    pool = draw(sequences + 2, 4, dv, dk, dtype=state)
    buffers = replay_buffers(pool, steps, 2, dtype=io, channel_gates=channel_gates)
    buffers.keys.normal_(), buffers.updates.normal_(), buffers.decays.fill_(0.5), buffers.banks.bernoulli_()
    query = draw(*lengths, 2, dk + 1, dtype=io)[..., dk % 16 // 8 :][..., :dk]  # unaligned if dk is an odd multiple of 8
    slots = hostile.hostile_indices(sequences)
    slots[::2] = torch.arange(slots[::2].shape[0], device="cuda")
    offsets = torch.tensor([0, *hostile.INDICES], device="cuda") if packed else None
    channels = (dk,) if channel_gates else ()
    gates = (draw(*lengths, 4, *channels), draw(*lengths, 4), draw(4), draw(4, *channels))
    accepted = verify.hostile_counts(sequences)
    valid = {name: count % (steps + 1) for name, count in accepted.items()}
    for counts in (accepted, valid):
        value = draw(*lengths, 4, dv, dtype=io)
        key = draw(*lengths, 2, dk, dtype=io)
        replay_decode(query, key, value, *gates, pool, *buffers, slots, cu_seqlens=offsets, **counts)
    commit_replay(pool, buffers, slots, **valid)
