"""SGLang's decode and verify: of Gated Delta Net, and of Kimi Delta Attention, whose gates `a` have a value for every channel
of the key. A slot below 0 is padding; slot 0 is an ordinary slot."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..compat.fla_arguments import channel_gates
from ..runtime import package as gdn_cuda
from .counted import Declined
from .packed import split_qkv
from .sglang_plan import parents


def _gates(
    a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, ssm_states: Tensor, lower_bound: float | None, *tokens: int
) -> tuple[tuple[Tensor, Tensor, Tensor | None, Tensor | None], dict[str, Any]]:
    """(a, b, A_log, dt_bias), and the bound if there is one. Biases of channels mean gates of channels."""
    heads, _, channels = ssm_states.shape[1:]
    has_channels = dt_bias.numel() != A_log.numel()
    shape = (*tokens, heads, channels) if has_channels else (*tokens, heads)
    if a.numel() != math.prod(shape) or b.numel() != math.prod(tokens) * heads:
        raise Declined("a or b has another size than tokens and states")
    a, b = a.reshape(shape), b.reshape(*tokens, heads)
    if not has_channels:
        return (a, b, A_log, dt_bias), {}
    flat = channel_gates(A_log, dt_bias, lower_bound)
    return (a, b, flat["A_log"], flat["dt_bias"]), {"lower_bound": lower_bound}


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    lower_bound: float | None = None,
    **others: Any,
) -> Tensor:
    """Decode of one token per sequence: (1, B, …)."""
    batch = cache_indices.shape[0]
    if q.shape[1] != batch:
        raise Declined("more than one token a sequence")
    gates, bound = _gates(a, b, A_log, dt_bias, ssm_states, lower_bound, batch, 1)
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    return gdn_cuda.fused_decode(q, k, v, *gates, ssm_states, cache_indices, **bound).transpose(0, 1)


def packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    ssm_states: Tensor,
    cache_indices: Tensor,
    num_v_heads: int,
    head_v_dim: int,
    lower_bound: float | None = None,
    **others: Any,
) -> Tensor:
    """Decode of rows (B, 2·H·K + HV·V). With a bound SGLang does not use its rings either."""
    if lower_bound is None and any(name.startswith("replayssm_") and x is not None for name, x in others.items()):
        raise Declined("ReplaySSM")
    q, k, v = split_qkv(mixed_qkv, ssm_states)
    gates, bound = _gates(a, b, A_log, dt_bias, ssm_states, lower_bound, mixed_qkv.shape[0], 1)
    return gdn_cuda.fused_decode(q, k, v, *gates, ssm_states, cache_indices, scale=scale, **bound).transpose(0, 1)


def target_verify(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    intermediate_states_buffer: Tensor,
    intermediate_state_indices: Tensor,
    cache_steps: int,
    retrieve_parent_token: Tensor | None,
    lower_bound: float | None = None,
    cache_ring: bool = False,
    **others: Any,
) -> Tensor:
    """Drafts: the pool is unchanged, and the state after every token goes to a row of the buffer. In a tree, token t continues
    from the state after token retrieve_parent_token[n, t]; the first token continues from the slot, whatever its parent is."""
    if cache_ring:
        raise Declined("ReplaySSM")
    shape, sequences, tokens = v.shape, query_start_loc.shape[0] - 1, q.shape[1]
    uniform = tokens == sequences * cache_steps  # every sequence has as many drafts, padding rows too
    rows = (sequences, cache_steps) if uniform else (tokens,)
    gates, bound = _gates(a, b, A_log, dt_bias, ssm_states, lower_bound, *rows)
    q, k, v = (x.squeeze(0).unflatten(0, rows) for x in (q, k, v))
    tree = None
    if retrieve_parent_token is not None:
        if not uniform:
            raise Declined("a tree of drafts in sequences of several lengths")
        tree = parents(retrieve_parent_token[:sequences])
    options: dict[str, Any] = bound | {
        "parents": tree,
        "cu_seqlens": None if uniform else query_start_loc,
        "step_states": intermediate_states_buffer,
        "step_slots": intermediate_state_indices[:sequences],
    }
    output = gdn_cuda.fused_decode(q, k, v, *gates, ssm_states, cache_indices[:sequences], **options)
    return output.reshape(shape)
