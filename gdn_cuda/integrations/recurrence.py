"""The recurrence as hosts call it: q, k and v of rank 4, packed ones too, in any dtype, with any strides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import gdn_cuda

from .counted import Declined

_HALF = (torch.bfloat16, torch.float16)


def prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.chunked_forward` with states (N, Hv, dv, dk); the output has the rank of value."""
    return _call("chunked_forward", query, key, value, beta, gate, state, cu_seqlens, more)


def by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gdn_cuda.recurrent_forward`, likewise."""
    return _call("recurrent_forward", query, key, value, beta, gate, state, cu_seqlens, more)


def _call(
    name: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    gate: Tensor,
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    more: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
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
