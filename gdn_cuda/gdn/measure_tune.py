"""Tunable operators of the Gated Delta Net: rows of a step's blocks, and how prefill splits sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..operators import tunable as declared
from ..operators.measure import Inputs, normal, tunable
from ..operators.tunable import Tunable
from .inputs import projections
from .measure_gates import gates

# Relative RMS between two results. A step has the same bits whatever the choice; segments of a prompt round what passes between
# them, and each of two results may have the error of numerics.md.
_SAME, _ROUNDED = 1e-6, 2**-7


# ---- fused_decode, one token for each sequence; the dtype is that of the states


@dataclass(frozen=True)
class Step(declared.Shape):
    batch: int = 64
    key_heads: int = 16
    value_heads: int = 32
    key_dim: int = 128
    value_dim: int = 128


def _step_problem(shape: Step, dtype: str, shared: bool) -> str:
    return (
        f"{{.sequences = {shape.batch}, {_heads(shape)}, .io = DType::bf16, .state = DType::{dtype}, "
        ".fused_gates = true, .channel_gates = false}"
    )


def _step(shape: Step, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    def for_heads(*leading: int, of: torch.dtype = torch.bfloat16) -> Tensor:
        return normal(*leading, shape.value_heads, device=device, dtype=of)

    return _projections(shape, device, 1) | {
        "a": for_heads(shape.batch, 1),
        "b": for_heads(shape.batch, 1),
        "A_log": for_heads(of=torch.float32),
        "dt_bias": for_heads(of=torch.float32),
        "state_pool": _states(shape, device).to(dtype),
        "state_indices": torch.randperm(shape.batch, device=device, dtype=torch.int32),
    }


# ---- chunked_forward of sequences of one length, half of whose heads have a slow decay; the dtype is that of the tokens


@dataclass(frozen=True)
class Prompt(declared.Shape):
    batch: int = 1
    tokens: int = 8192
    key_heads: int = 16
    value_heads: int = 32
    key_dim: int = 128
    value_dim: int = 128


def _prompt_problem(shape: Prompt, dtype: str, shared: bool) -> str:
    return (
        f"{{.sequences = {shape.batch}, .tokens = {shape.tokens}, {_heads(shape)}, .io = DType::{dtype}, "
        ".state = DType::f32, .deterministic = false, .packed_tokens = 0}"
    )


def _prompt(shape: Prompt, dtype: torch.dtype, shared: bool, device: str) -> dict[str, Any]:
    tokens = shape.batch, shape.tokens
    return {name: x.to(dtype) for name, x in _projections(shape, device, shape.tokens).items()} | {
        "beta": torch.rand(*tokens, shape.value_heads, device=device),
        "gate": gates("mixed", tokens, shape.value_heads, device),
        "state": _states(shape, device),
    }


# ---- Both


def _heads(shape: Step | Prompt) -> str:
    return f".heads = {shape.value_heads}, .dk = {shape.key_dim}, .dv = {shape.value_dim}"


def _projections(shape: Step | Prompt, device: str, tokens: int) -> Inputs:
    heads = {"key_heads": shape.key_heads, "value_heads": shape.value_heads}
    return projections(device, shape.batch, tokens, **heads, key_dim=shape.key_dim, value_dim=shape.value_dim)


def _states(shape: Step | Prompt, device: str) -> Tensor:
    return normal(shape.batch, shape.value_heads, shape.value_dim, shape.key_dim, device=device, dtype=torch.float32)


tunable(
    "fused_decode",
    Tunable("gdn/decode", Step, {"bf16": _SAME, "f32": _SAME}, _step_problem, _step, in_place=("state_pool",)),
)
tunable(
    "chunked_forward",
    Tunable(
        "gdn/prefill",
        Prompt,
        {"bf16": _ROUNDED, "f16": _ROUNDED},
        _prompt_problem,
        _prompt,
        takes_out=False,
    ),
)
