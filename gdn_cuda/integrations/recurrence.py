"""The recurrence as hosts call it: q, k and v of rank 4, packed ones too, in any dtype, with any strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gdn_cuda

from .counted import Declined

_HALF = (torch.bfloat16, torch.float16)


def prefill(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.chunked_forward` by name: (output, final state). States are (N, Hv, dv, dk), with any strides."""
    return _call("chunked_forward", query, key, value, **more)


def by_token(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.recurrent_forward`, likewise."""
    return _call("recurrent_forward", query, key, value, **more)


def split_qkv(mixed_qkv: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views (B, 1, heads, columns) of rows (B, 2·H·K + HV·V), for states (slots, HV, V, K)."""
    heads, dv, dk = states.shape[1:]
    keys = (mixed_qkv.shape[1] - heads * dv) // 2
    q, k, v = mixed_qkv.unsqueeze(1).split((keys, keys, heads * dv), dim=-1)
    return q.unflatten(-1, (-1, dk)), k.unflatten(-1, (-1, dk)), v.unflatten(-1, (heads, dv))


def _call(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: Tensor | None,
    gate: Tensor | None,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    beta_is_logit: bool = False,
    allow_negative_eigenvalues: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    beta = value.new_ones(value.shape[:-1]) if beta is None else beta
    gate = torch.zeros_like(beta, dtype=torch.float32) if gate is None else gate
    if A_log is not None:
        bias = torch.zeros_like(A_log) if dt_bias is None else dt_bias
        _, gate = gdn_cuda.fused_gdn_gating(A_log, bias, gate, gate)
    if beta_is_logit:
        beta = beta.float().sigmoid() * (2 if allow_negative_eigenvalues else 1)
    inputs = [query, key, value, beta, gate]
    if packed := cu_seqlens is not None:
        if any(x.shape[0] != 1 for x in inputs):
            raise Declined("cu_seqlens is given with a batch")
        inputs = [x[0] for x in inputs]
    exact = query.dtype not in _HALF
    if exact and query.is_cuda:
        raise Declined(f"q, k and v are {query.dtype}")
    function = getattr(gdn_cuda.reference if exact else gdn_cuda, name)
    q, k, v, beta, gate = inputs
    if state is not None:
        state = state.contiguous()
    given = {"query": q.contiguous(), "key": k.contiguous(), "value": v.contiguous(), "beta": beta, "gate": gate}
    output, state, *_ = function(**given, state=state, cu_seqlens=cu_seqlens, **more)  # the references return more
    return output[None] if packed else output, state
