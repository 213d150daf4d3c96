"""Benchmarks of the steps of the chunked form: inputs, and how many bytes a step moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..operators.measure import Case, Inputs, Work, bench, size
from .inputs import projections
from .reference import CHUNK

KEY_HEADS, VALUE_HEADS, HEAD = 16, 32, 128
GPU_EXTENTS = ((1, 8192), (8, 4096))
CPU_EXTENTS = ((1, 256),)


@bench()
def bf16_gdn_compute_u_w(device: str) -> Iterator[Case]:
    return _cases(device, _u_w_work)


@bench()
def bf16_chunked_seq_state_update(device: str) -> Iterator[Case]:
    return _cases(device, _state_update_work)


@bench()
def bf16_gdn_chunked_compute_O(device: str) -> Iterator[Case]:
    return _cases(device, _output_work)


def _cases(device: str, work: Callable[[str, int, int], Work]) -> Iterator[Case]:
    for batch, tokens in GPU_EXTENTS if device == "cuda" else CPU_EXTENTS:
        yield Case(f"{batch}×{tokens} {KEY_HEADS}/{VALUE_HEADS}", partial(work, device, batch, tokens))


def _tensors(device: str, batch: int, tokens: int) -> dict[str, Tensor]:
    """The arguments of all steps, by name; weak gates, states in fp32."""
    from ..runtime import package as gdn_cuda

    x = projections(device, batch, tokens, key_heads=KEY_HEADS, value_heads=VALUE_HEADS)
    gate = -torch.rand(batch, tokens, VALUE_HEADS, device=device) / CHUNK
    cumulated = torch.empty_like(gate)
    gdn_cuda.chunk_local_cumsum_bf16(gate, cumulated, batch, tokens, VALUE_HEADS)
    states = torch.zeros(batch, -(-tokens // CHUNK), VALUE_HEADS, HEAD, HEAD, device=device)
    return {
        "q": x["query"],
        "k": x["key"],
        "v": x["value"],
        "beta": gdn_cuda.transpose_to_mn_major(torch.rand(batch, tokens, VALUE_HEADS, device=device)),
        "gate": gdn_cuda.transpose_to_mn_major(cumulated),
        "u": torch.empty_like(x["value"]),
        "w": torch.empty(batch, tokens, VALUE_HEADS, HEAD, device=device, dtype=torch.bfloat16),
        "o": torch.empty_like(x["value"]),
        "state": states,
        "final_state": torch.empty_like(states[:, 0]),
    }


def _chosen(x: dict[str, Tensor], *names: str) -> Inputs:
    return {name: x[name] for name in names}


def _work(operator: Callable[..., Any], inputs: Inputs, moved: int, written: tuple[str, str]) -> Work:
    def outcome(inputs: Inputs) -> tuple[Tensor, Tensor]:
        fresh = inputs | {name: inputs[name].clone() for name in written}
        operator(**fresh)
        return fresh[written[0]], fresh[written[1]]

    return Work(partial(operator, **inputs), moved, 0, inputs, outcome, inputs)


def _u_w_work(device: str, batch: int, tokens: int) -> Work:
    from ..runtime import package as gdn_cuda

    inputs = _chosen(_tensors(device, batch, tokens), "k", "v", "u", "w", "beta", "gate")
    return _work(gdn_cuda.bf16_gdn_compute_u_w, inputs, size(*inputs.values()), ("u", "w"))


def _state_update_work(device: str, batch: int, tokens: int) -> Work:
    from ..runtime import package as gdn_cuda

    x = _tensors(device, batch, tokens)
    gdn_cuda.bf16_gdn_compute_u_w(**_chosen(x, "k", "v", "u", "w", "beta", "gate"))
    inputs = _chosen(x, "k", "u", "w", "state", "final_state", "gate")
    moved = size(*inputs.values(), x["u"])  # u is read and overwritten with v'
    return _work(gdn_cuda.bf16_chunked_seq_state_update, inputs, moved, ("u", "state"))


def _output_work(device: str, batch: int, tokens: int) -> Work:
    from ..runtime import package as gdn_cuda

    x = _tensors(device, batch, tokens)
    x["u"].copy_(x["v"])
    inputs = _chosen(x, "q", "state", "k", "u", "o", "gate")
    return _work(gdn_cuda.bf16_gdn_chunked_compute_O, inputs, size(*inputs.values()), ("o", "u"))
