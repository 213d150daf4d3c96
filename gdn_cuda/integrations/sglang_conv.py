"""SGLang's convolutions of prompts and tokens, which it has in two kinds."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..runtime import package as gdn_cuda
from .counted import Declined


def conv_prompts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    conv_states: Tensor | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    **others: Any,
) -> Tensor:
    """The convolution of prompts (channels, tokens)."""
    if query_start_loc is None or conv_states is None or pad_slot_id != -1:
        raise Declined("neither packed prompts nor a pool, or another slot of padding")
    options = {"state_indices": cache_indices, "has_initial_state": has_initial_state, "cu_seqlens": query_start_loc}
    pool = conv_states[..., : weight.shape[1] - 1]
    return gdn_cuda.causal_conv1d(x[None], weight, bias, activation=activation, conv_state=pool, **options)[0]


def conv_drafts(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | bool | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    num_accept_tokens: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    pad_slot_id: int = -1,
    metadata: Any = None,
    validate_data: bool = False,
) -> Tensor:
    """The convolution of one token per request. Drafts, whose windows SGLang stores, run SGLang's own."""
    drafts = (num_accept_tokens, intermediate_conv_window, retrieve_next_token, retrieve_parent_token)
    if any(given is not None for given in drafts) or cache_seqlens is not None or pad_slot_id != -1:
        raise Declined("drafts, a circular state, or another slot of padding")
    silu = "silu" if activation is True else activation or None
    pool = conv_state[..., : weight.shape[1] - 1]
    return gdn_cuda.causal_conv1d_update(x, pool, weight, bias, silu, conv_state_indices=conv_state_indices)


def conv_prompts_triton(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    seq_lens_cpu: list[int],
    cache_indices: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    activation: str | None = "silu",
    pad_slot_id: int = -1,
    validate_data: bool = False,
    block_table: Tensor | None = None,
    **others: Any,
) -> Tensor:
    if block_table is not None:
        raise Declined("a table of blocks")
    slots = (query_start_loc, cache_indices, has_initial_state, conv_states)
    return conv_prompts(x, weight, bias, *slots, activation=activation, pad_slot_id=pad_slot_id)


def conv_tokens(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    pad_slot_id: int = -1,
) -> Tensor:
    given = (x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)
    return conv_drafts(*given, pad_slot_id=pad_slot_id)
