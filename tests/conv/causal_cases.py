"""Inputs of causal_conv1d for its tests on either device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]
LAYOUTS = ("tokens", "channels", "strided", "unaligned")

# Options of inputs(), for one batch row of at least 200 tokens.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biased, silu": {"bias": True, "activation": "silu"},
    "states": {"states": True, "bias": True, "activation": "swish"},
    "packed": {"packed": [0, 0, 1, 3, 17, 17, 150, 200], "activation": "silu"},
    "packed, states": {"packed": [0, 5, 6, 8, 128, 190], "states": True, "bias": True, "activation": "silu"},
    "seq_idx": {"seq_idx": [(0, 9), (3, 60), (-1, 5), (4, 1), (5, 1), (4, 2), (2, 100)], "activation": "silu", "bias": True},
    "seq_idx, states": {"seq_idx": [(7, 2), (8, 1), (7, 100), (-2, 40)], "states": True},
}


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A copy of x (B, D, L): contiguous tokens, contiguous channels, neither, or contiguous tokens off 16-byte alignment."""
    B, D, L = x.shape
    if layout == "tokens":
        return x.contiguous()
    if layout == "channels":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return x.new_empty(B, D, 2, L, 3)[:, :, 1, :, 1].copy_(x)
    return x.new_empty(B, D, L + 1)[:, :, 1:].copy_(x)


def ids(runs: list[tuple[int, int]], B: int, L: int) -> Tensor:
    """(B, L) from (index, tokens); the last index continues to the end."""
    row = [index for index, count in runs for _ in range(count)][:L]
    row += [runs[-1][0]] * (L - len(row))
    return torch.tensor(row, dtype=torch.int32).expand(B, L).contiguous()


def inputs(
    B: int,
    D: int,
    L: int,
    W: int,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    weight_dtype: torch.dtype | None = None,
    device: str = "cpu",
    layout: str = "tokens",
    bias: bool = False,
    states: bool = False,
    packed: list[int] | None = None,
    seq_idx: list[tuple[int, int]] | None = None,
    activation: str | None = None,
) -> Inputs:
    rng = torch.Generator().manual_seed(seed)

    def draw(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(device, dtype)

    weight_type = weight_dtype or dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    x: Inputs = {
        "x": laid_out(draw(B, D, L, dtype=dtype), layout),
        "weight": draw(D, W, dtype=weight_type) / W**0.5,
        "bias": draw(D, dtype=weight_type) if bias else None,
        "activation": activation,
    }
    if states:
        sequences = B if packed is None else len(packed) - 1
        x["initial_states"] = draw(sequences, D, W - 1, dtype=wide)
    if packed is not None:
        x["cu_seqlens"] = torch.tensor(packed, dtype=torch.int32, device=device)
    if seq_idx is not None:
        x["seq_idx"] = ids(seq_idx, B, L).to(device)
    return x


def for_oracle(x: Inputs) -> Inputs:
    return {name: y for name, y in x.items() if name != "activation"} | {"silu": x["activation"] is not None}


def leaves(x: Inputs) -> dict[str, Tensor]:
    """The differentiable inputs, by name."""
    return {name: x[name] for name in ("x", "weight", "bias", "initial_states") if x.get(name) is not None}
