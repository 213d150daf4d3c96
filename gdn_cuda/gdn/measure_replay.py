"""Benchmark of replay_decode, and calls of its kernel for compute-sanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor

from ..operators import hostile, verify
from ..operators.measure import Case, Inputs, Outcome, Work, bench, draw, normal, sanitizes, size
from .inputs import projections
from .replay import ReplayBuffers, commit_replay, replay_buffers, replay_decode

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


# ---- compute-sanitizer


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
