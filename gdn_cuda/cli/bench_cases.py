"""What is measured: shapes, inputs, and the bytes and FLOPs that each call cannot do without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .bench_timing import Call

HEAD = 128
CHUNK = 64


@dataclass
class Case:
    shape: str
    bytes: int
    flops: int
    call: Call
    tensors: dict[str, Any] = field(repr=False)  # for the peers


def _normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device, dtype=torch.float32).to(dtype)


def _projections(device: str, batch: int, tokens: int, key_heads: int, value_heads: int) -> dict[str, Any]:
    query = torch.nn.functional.normalize(_normal(batch, tokens, key_heads, HEAD, device=device).float(), dim=-1)
    key = torch.nn.functional.normalize(_normal(batch, tokens, key_heads, HEAD, device=device).float(), dim=-1)
    return {
        "query": query.bfloat16(),
        "key": key.bfloat16(),
        "value": _normal(batch, tokens, value_heads, HEAD, device=device),
    }


def _size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fused_decode(device: str) -> Iterator[Case]:
    import gdn_cuda

    batches = {(16, 32): (1, 4, 16, 64, 256), (4, 8): (1, 64)} if device == "cuda" else {(16, 32): (1, 4)}
    for (key_heads, value_heads), sizes in batches.items():
        for batch in sizes:
            for state_dtype in (torch.float32, torch.bfloat16):
                x = _projections(device, batch, 1, key_heads, value_heads)
                x |= {
                    "a": _normal(batch, 1, value_heads, device=device),
                    "b": _normal(batch, 1, value_heads, device=device),
                    "A_log": _normal(value_heads, device=device, dtype=torch.float32),
                    "dt_bias": _normal(value_heads, device=device, dtype=torch.float32),
                    "state_pool": _normal(batch, value_heads, HEAD, HEAD, device=device, dtype=state_dtype),
                    "state_indices": torch.randperm(batch, device=device, dtype=torch.int32),
                    "out": torch.empty(batch, 1, value_heads, HEAD, device=device, dtype=torch.bfloat16),
                }
                yield Case(
                    f"{key_heads}/{value_heads} B={batch} {_name(state_dtype)} state",
                    2 * _size(x["state_pool"]) + _size(x["query"], x["key"], x["value"], x["a"], x["b"], x["out"]),
                    0,
                    partial(gdn_cuda.fused_decode, **x),
                    x,
                )


def recurrent_forward(device: str) -> Iterator[Case]:
    import gdn_cuda

    for batch in (1, 16, 64) if device == "cuda" else (1,):
        for tokens in (1, 2, 4, 8):
            x = _projections(device, batch, tokens, 16, 32)
            x |= {
                "state": _normal(batch, 32, HEAD, HEAD, device=device, dtype=torch.float32),
                "beta": torch.rand(batch, tokens, 32, device=device).bfloat16(),
                "gate": -torch.rand(batch, tokens, 32, device=device),
            }
            yield Case(
                f"16/32 B={batch} T={tokens} fp32 state",
                2 * _size(x["state"], x["value"]) + _size(x["query"], x["key"], x["beta"], x["gate"]),
                0,
                partial(gdn_cuda.recurrent_forward, **x, inference_mode=gdn_cuda.InferenceMode.DECODE),
                x,
            )


def fused_gdn_gating(device: str) -> Iterator[Case]:
    import gdn_cuda

    shapes = ((1, 1), (256, 1), (1, 8192), (1, 131072), (8, 131072)) if device == "cuda" else ((1, 1), (1, 8192))
    for batch, tokens in shapes:
        x = {
            "A_log": _normal(32, device=device, dtype=torch.float32),
            "dt_bias": _normal(32, device=device, dtype=torch.float32),
            "a": _normal(batch, tokens, 32, device=device),
            "b": _normal(batch, tokens, 32, device=device),
        }
        gate_bytes = 4 * x["a"].numel()
        yield Case(
            f"{batch}×{tokens}×32",
            _size(x["a"], x["b"], x["b"]) + gate_bytes,
            0,
            partial(gdn_cuda.fused_gdn_gating, **x),
            x,
        )


PREFILL = (
    (1, 1024, 16, 32),
    (1, 4096, 16, 32),
    (1, 8192, 16, 32),
    (1, 32768, 16, 32),
    (1, 131072, 16, 32),
    (8, 4096, 16, 32),
    (32, 1024, 16, 32),
    (1, 8192, 4, 8),
    (1, 32768, 4, 8),
    (1, 32768, 2, 4),
    (1, 8192, 16, 64),
    (1, 32768, 16, 48),
    (8, 2048, 16, 16),
)


def chunked_forward(device: str) -> Iterator[Case]:
    import gdn_cuda

    for batch, tokens, key_heads, value_heads in PREFILL if device == "cuda" else ((1, 256, 4, 8),):
        x = _projections(device, batch, tokens, key_heads, value_heads)
        x |= {
            "beta": torch.rand(batch, tokens, value_heads, device=device).bfloat16(),
            "gate": -torch.rand(batch, tokens, value_heads, device=device),
            "state": _normal(batch, value_heads, HEAD, HEAD, device=device, dtype=torch.float32),
        }
        yield Case(
            f"{batch}×{tokens} {key_heads}/{value_heads}",
            2 * _size(x["state"], x["value"]) + _size(x["query"], x["key"], x["beta"], x["gate"]),
            batch * tokens * value_heads * chunked_flops_a_token(),
            partial(gdn_cuda.chunked_forward, **x),
            x,
        )


def chunked_flops_a_token() -> int:
    """Of one head: five products over the chunk (k kᵀ, q kᵀ, u, w, the output's second term) and three with the state."""
    return 2 * HEAD * (5 * CHUNK + 3 * HEAD)


def _name(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]


CASES: dict[str, Callable[[str], Iterator[Case]]] = {
    "fused_decode": fused_decode,
    "recurrent_forward": recurrent_forward,
    "fused_gdn_gating": fused_gdn_gating,
    "chunked_forward": chunked_forward,
}
