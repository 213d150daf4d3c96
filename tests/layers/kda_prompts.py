"""Prompts of a Kimi Delta Attention layer with random weights."""

from __future__ import annotations

from typing import Any

import torch

from gdn_cuda.layers.kda_decode_layer import layer_arguments

POOLS = ("conv_pool", "state_pool")
PER_TOKEN = ("qkv", "a", "b", "z")


def prompts(seed: int, tokens: int, batch: int = 1, **sizes: Any) -> dict[str, Any]:
    """`tokens` of each sequence, beside pools of five slots."""
    x = layer_arguments(batch, seed, slots=5, **sizes)
    generator = torch.Generator().manual_seed(seed)
    for name in PER_TOKEN:
        x[name] = torch.randn(batch, tokens, *x[name].shape[1:], generator=generator).to(x[name].dtype)
    return x
