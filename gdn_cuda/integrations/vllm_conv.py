"""vLLM's convolutions of prompts, tokens and drafts. A pool for drafts has more columns; other calls use its first W − 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..runtime import package as gdn_cuda

NULL_BLOCK = 0  # the slot of padding rows; negative slots are padding too


def conv_prompts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = -1,
    null_block_id: int | None = NULL_BLOCK,
    metadata: Any = None,
    validate_data: bool = False,
) -> Tensor:
    """The convolution of prompts x (channels, tokens). Tables of slots and flags may have more rows than there are prompts."""
    sequences = query_start_loc.shape[0] - 1
    if cache_indices is not None:
        cache_indices = cache_indices[:sequences]
        if null_block_id is not None:
            cache_indices = torch.where(cache_indices == null_block_id, -1, cache_indices)
    return gdn_cuda.causal_conv1d(
        x.unsqueeze(0),
        weight,
        bias,
        activation=_activation(activation),
        cu_seqlens=query_start_loc,
        conv_state=conv_states[..., : weight.shape[1] - 1],
        state_indices=cache_indices,
        has_initial_state=None if has_initial_state is None else has_initial_state[:sequences],
    ).squeeze(0)


def conv_steps(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int = -1,
    null_block_id: int | None = NULL_BLOCK,
    validate_data: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """The convolution of decodes and drafts; overwrites x if no output is given."""
    return gdn_cuda.causal_conv1d_update(
        x,
        conv_state if num_accepted_tokens is not None else conv_state[..., : weight.shape[1] - 1],
        weight,
        bias,
        _activation(activation),
        conv_state_indices=conv_state_indices,
        num_accepted_tokens=num_accepted_tokens,
        cu_seqlens=query_start_loc,
        null_slot=null_block_id,
        out=x if out is None else out,
    )


def _activation(given: str | bool | None) -> str | None:
    return given if isinstance(given, str) else "silu" if given else None


# The functions, with the parameters that were verified
FUNCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "causal_conv1d_fn": (
        "x, weight, bias, conv_states, query_start_loc, cache_indices=None, has_initial_state=None, activation='silu', "
        "pad_slot_id=-1, null_block_id=0, metadata=None, validate_data=False",
        conv_prompts,
    ),
    "causal_conv1d_update": (
        "x, conv_state, weight, bias=None, activation=None, conv_state_indices=None, num_accepted_tokens=None, "
        "query_start_loc=None, max_query_len=-1, null_block_id=0, validate_data=False, out=None",
        conv_steps,
    ),
}
