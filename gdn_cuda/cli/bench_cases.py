"""What is measured: shapes, their inputs, and the bytes and FLOPs that a call is measured against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .bench_timing import Call

Inputs = dict[str, Any]
Outcome = tuple[Tensor, Tensor]  # the output, and the last state of every sequence in the batch's order


@dataclass
class Work:
    """A call on inputs that exist."""

    call: Call
    bytes: int
    flops: int
    inputs: Inputs = field(repr=False)  # for the peers
    outcome: Callable[[Inputs], Outcome]  # of a fresh call, which leaves the inputs as they were
    checked: Inputs = field(repr=False)  # the inputs to compare outcomes on


@dataclass
class Case:
    shape: str
    prepare: Callable[[], Work]
    captured: bool = True  # measured as a CUDA graph's replay; otherwise call by call
    curve: tuple[str, int] | None = None  # the plotted curve that this is a point of, and its place on it


def normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def projections(
    device: str, *leading: int, key_heads: int, value_heads: int, key_dim: int = 128, value_dim: int = 128
) -> Inputs:
    """Query, key (both of unit length) and value."""

    def unit() -> Tensor:
        drawn = torch.randn(*leading, key_heads, key_dim, device=device)
        return torch.nn.functional.normalize(drawn, dim=-1).bfloat16()

    return {"query": unit(), "key": unit(), "value": normal(*leading, value_heads, value_dim, device=device)}


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype]


# ---- Decode

HEAD = 128


def fused_decode(device: str) -> Iterator[Case]:
    batches = {(16, 32): (1, 4, 16, 64, 256), (4, 8): (1, 64)} if device == "cuda" else {(16, 32): (1, 4)}
    for heads, sizes in batches.items():
        for batch in sizes:
            for dtype in (torch.float32, torch.bfloat16):
                shape = f"{heads[0]}/{heads[1]} B={batch} {_name(dtype)} state"
                yield Case(shape, partial(_decode_work, device, batch, *heads, dtype))


def _decode_work(device: str, batch: int, key_heads: int, value_heads: int, state_dtype: torch.dtype) -> Work:
    import gdn_cuda

    x = projections(device, batch, 1, key_heads=key_heads, value_heads=value_heads)
    x |= {
        "a": normal(batch, 1, value_heads, device=device),
        "b": normal(batch, 1, value_heads, device=device),
        "A_log": normal(value_heads, device=device, dtype=torch.float32),
        "dt_bias": normal(value_heads, device=device, dtype=torch.float32),
        "state_pool": normal(batch, value_heads, HEAD, HEAD, device=device, dtype=state_dtype),
        "state_indices": torch.randperm(batch, device=device, dtype=torch.int32),
        "out": torch.empty(batch, 1, value_heads, HEAD, device=device, dtype=torch.bfloat16),
    }

    def outcome(inputs: Inputs) -> Outcome:
        pool = inputs["state_pool"].clone()
        out = gdn_cuda.fused_decode(**inputs | {"state_pool": pool, "out": None})
        return out, pool[inputs["state_indices"]]

    moved = 2 * size(x["state_pool"]) + size(x["query"], x["key"], x["value"], x["a"], x["b"], x["out"])
    return Work(partial(gdn_cuda.fused_decode, **x), moved, 0, x, outcome, x)


def recurrent_forward(device: str) -> Iterator[Case]:
    for batch in (1, 16, 64) if device == "cuda" else (1,):
        for tokens in (1, 2, 4, 8):
            yield Case(f"16/32 B={batch} T={tokens} fp32 state", partial(_recurrent_work, device, batch, tokens))


def _recurrent_work(device: str, batch: int, tokens: int) -> Work:
    import gdn_cuda

    x = projections(device, batch, tokens, key_heads=16, value_heads=32)
    x |= {
        "state": normal(batch, 32, HEAD, HEAD, device=device, dtype=torch.float32),
        "beta": torch.rand(batch, tokens, 32, device=device).bfloat16(),
        "gate": -torch.rand(batch, tokens, 32, device=device),
    }

    step = partial(gdn_cuda.recurrent_forward, inference_mode=gdn_cuda.InferenceMode.DECODE)
    moved = 2 * size(x["state"], x["value"]) + size(x["query"], x["key"], x["beta"], x["gate"])
    return Work(partial(step, **x), moved, 0, x, lambda inputs: step(**inputs), x)


# ---- Gating


def fused_gdn_gating(device: str) -> Iterator[Case]:
    shapes = ((1, 1), (256, 1), (1, 8192), (1, 131072), (8, 131072)) if device == "cuda" else ((1, 1), (1, 8192))
    for batch, tokens in shapes:
        yield Case(f"{batch}×{tokens}×32", partial(_gating_work, device, batch, tokens))


def _gating_work(device: str, batch: int, tokens: int) -> Work:
    import gdn_cuda

    x = {
        "A_log": normal(32, device=device, dtype=torch.float32),
        "dt_bias": normal(32, device=device, dtype=torch.float32),
        "a": normal(batch, tokens, 32, device=device),
        "b": normal(batch, tokens, 32, device=device),
    }
    gate_bytes = 4 * x["a"].numel()
    moved = size(x["a"], x["b"], x["b"]) + gate_bytes
    return Work(partial(gdn_cuda.fused_gdn_gating, **x), moved, 0, x, lambda inputs: gdn_cuda.fused_gdn_gating(**inputs), x)
