"""Benchmarks of decode: shapes, inputs, and how many bytes a call moves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ..operators import verify
from ..operators.measure import Case, Inputs, Outcome, Work, bench, normal, size
from . import measure_peers as peers
from .inputs import projections


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}[dtype]


# ---- Decode

HEAD = 128
STATES = (torch.float32, torch.bfloat16, torch.int8)
VERIFIED = ((1, 4), (1, 8), (16, 4), (64, 4), (64, 8))  # batch and tokens


@bench({"FlashInfer": peers.flashinfer_decode, "FLA": peers.fla_decode})
def fused_decode(device: str) -> Iterator[Case]:
    batches = {(16, 32): (1, 4, 16, 64, 256), (4, 8): (1, 64)} if device == "cuda" else {(16, 32): (1, 4)}
    for heads, sizes in batches.items():
        for batch in sizes:
            for dtype in STATES:
                kind = f"{_name(dtype)} state"
                work = partial(decode_work, device, batch, 1, *heads, dtype)
                yield Case(f"{heads[0]}/{heads[1]} B={batch} {kind}", work, kind=kind)
    for batch in (1, 64, 256) if device == "cuda" else (1,):
        for dtype in STATES:
            kind = f"{_name(dtype)} state"
            work = partial(decode_work, device, batch, 1, 32, 32, dtype, channels=True)
            yield Case(f"32 B={batch} gate per channel {kind}", work, kind=kind)
    for batch, tokens in VERIFIED if device == "cuda" else ():
        for dtype in STATES:
            kind = f"{_name(dtype)} state"
            work = partial(decode_work, device, batch, tokens, 16, 32, dtype)
            yield Case(f"16/32 B={batch} T={tokens} {kind}", work, kind=kind)


def decode_work(
    device: str,
    batch: int,
    tokens: int,
    key_heads: int,
    value_heads: int,
    state_dtype: torch.dtype,
    channels: bool = False,
) -> Work:
    """With several tokens, plain verify: the state after each token goes to a slot of its own. `channels`: with a gate for
    every channel of the key."""
    from ..runtime import package as gdn_cuda

    x = projections(device, batch, tokens, key_heads=key_heads, value_heads=value_heads)
    gates = (value_heads, HEAD) if channels else (value_heads,)
    slots = batch * tokens
    x |= {
        "a": normal(batch, tokens, *gates, device=device),
        "b": normal(batch, tokens, value_heads, device=device),
        "A_log": normal(value_heads, device=device, dtype=torch.float32),
        "dt_bias": normal(*gates, device=device, dtype=torch.float32),
        "out": torch.empty(batch, tokens, value_heads, HEAD, device=device, dtype=torch.bfloat16),
    }
    states = normal(slots, value_heads, HEAD, HEAD, device=device, dtype=torch.float32)
    x["state_pool"], scales = gdn_cuda.convert_states(states, state_dtype)
    if scales is not None:
        x["state_scales"] = scales
    if tokens > 1:
        x |= verify.measured(device, batch, tokens)
    else:
        x["state_indices"] = torch.randperm(slots, device=device, dtype=torch.int32)

    def outcome(inputs: Inputs) -> Outcome:
        pools = {name: inputs[name].clone() for name in ("state_pool", "state_scales") if name in inputs}
        out = gdn_cuda.fused_decode(**inputs | pools | {"out": None})
        return out, pools["state_pool"][inputs["state_indices"]]

    moved_states = (tokens + 1) * size(*(x[name] for name in ("state_pool", "state_scales") if name in x)) // tokens
    moved = moved_states + size(x["query"], x["key"], x["value"], x["a"], x["b"], x["out"])
    return Work(partial(gdn_cuda.fused_decode, **x), moved, 0, x, outcome, x)


@bench({"FLA": peers.fla_recurrent})
def recurrent_forward(device: str) -> Iterator[Case]:
    for batch in (1, 16, 64) if device == "cuda" else (1,):
        for tokens in (1, 2, 4, 8):
            yield Case(f"16/32 B={batch} T={tokens} fp32 state", partial(_recurrent_work, device, batch, tokens))
        for tokens in (1, 8):
            work = partial(_recurrent_work, device, batch, tokens, key_heads=32, channels=(HEAD,))
            yield Case(f"32/32 with gates of channels B={batch} T={tokens} fp32 state", work)


def _recurrent_work(device: str, batch: int, tokens: int, key_heads: int = 16, channels: tuple[int, ...] = ()) -> Work:
    from ..runtime import package as gdn_cuda

    x = projections(device, batch, tokens, key_heads=key_heads, value_heads=32)
    x |= {
        "state": normal(batch, 32, HEAD, HEAD, device=device, dtype=torch.float32),
        "beta": torch.rand(batch, tokens, 32, device=device).bfloat16(),
        "gate": -torch.rand(batch, tokens, 32, *channels, device=device),
    }

    step = partial(gdn_cuda.recurrent_forward, inference_mode=gdn_cuda.InferenceMode.DECODE)
    moved = 2 * size(x["state"], x["value"]) + size(x["query"], x["key"], x["beta"], x["gate"])
    return Work(partial(step, **x), moved, 0, x, lambda inputs: step(**inputs), x)
